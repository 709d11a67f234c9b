"""Plans at Stripe: subscriptions, their schedules and their invoices. What may be changed when, B11 says."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from billing.errors import GatewayMissing
from billing.gateway import reading
from billing.gateway.client import Deadline, calling
from billing.gateway.shapes import Invoice, Phase, Preview, Schedule, Subscription

if TYPE_CHECKING:
    from stripe.params import (
        InvoiceCreatePreviewParams,
        SubscriptionScheduleUpdateParamsPhase,
        SubscriptionUpdateParams,
    )

PAGE = 100
WITH = ["schedule", "latest_invoice"]


def list_subscriptions(deadline: Deadline, customer_id: str) -> list[Subscription]:
    """All there ever were, ended ones too, each with its schedule and latest invoice."""
    with calling("subscription_list", deadline) as call:
        page = call.client.v1.subscriptions.list(
            {
                "customer": customer_id,
                "status": "all",
                "limit": PAGE,
                "expand": [f"data.{name}" for name in WITH],
            },
            call.options(),
        )
        return [reading.subscription_of(found) for found in page.auto_paging_iter()]


def get_subscription(deadline: Deadline, subscription_id: str) -> Subscription | None:
    """None counts as ended (B14.4)."""
    try:
        with calling("subscription_get", deadline) as call:
            found = call.client.v1.subscriptions.retrieve(subscription_id, {"expand": WITH}, call.options())
            return reading.subscription_of(found)
    except GatewayMissing:
        return None


def change_price(
    deadline: Deadline,
    subscription: Subscription,
    price_id: str,
    *,
    key: str,
    proration_date: datetime | None = None,
) -> Subscription:
    """At once, charged at once; unpaid, the old price stays and a pending update waits (B11.5)."""
    params: SubscriptionUpdateParams = {
        "items": [{"id": subscription.item_id, "price": price_id}],
        "proration_behavior": "always_invoice",
        "payment_behavior": "pending_if_incomplete",
        "expand": WITH,
    }
    if proration_date is not None:
        params["proration_date"] = int(proration_date.timestamp())
    with calling("subscription_price", deadline) as call:
        return reading.subscription_of(
            call.client.v1.subscriptions.update(subscription.id, params, call.options(key))
        )


def set_cancel_at_period_end(
    deadline: Deadline, subscription_id: str, *, cancel: bool, key: str
) -> Subscription:
    """True ends it with its period; False takes that back, also a date that was set."""
    params: SubscriptionUpdateParams = {"cancel_at_period_end": cancel, "expand": WITH}
    with calling("subscription_cancel_later", deadline) as call:
        return reading.subscription_of(
            call.client.v1.subscriptions.update(subscription_id, params, call.options(key))
        )


def cancel_subscription(
    deadline: Deadline, subscription_id: str, *, key: str, prorate: bool = False
) -> Subscription | None:
    """Now. None when Stripe has it no more."""
    try:
        with calling("subscription_cancel", deadline) as call:
            made = call.client.v1.subscriptions.cancel(
                subscription_id, {"prorate": prorate, "invoice_now": prorate}, call.options(key)
            )
            return reading.subscription_of(made)
    except GatewayMissing:
        return None


# --- schedules ------------------------------------------------------------------------------------------


def create_schedule(deadline: Deadline, subscription_id: str, *, key: str) -> Schedule:
    """From the subscription as it is; Stripe allows no other parameter in this call."""
    with calling("schedule_create", deadline) as call:
        made = call.client.v1.subscription_schedules.create(
            {"from_subscription": subscription_id}, call.options(key)
        )
        return reading.schedule_of(made)


def get_schedule(deadline: Deadline, schedule_id: str) -> Schedule | None:
    try:
        with calling("schedule_get", deadline) as call:
            found = call.client.v1.subscription_schedules.retrieve(schedule_id, {}, call.options())
            return reading.schedule_of(found)
    except GatewayMissing:
        return None


def plan_price_change(
    deadline: Deadline, schedule_id: str, *, current: Phase, price_id: str, key: str
) -> Schedule:
    """The current phase as it is, then one month of another price; then the schedule lets go (B11.6)."""
    now: SubscriptionScheduleUpdateParamsPhase = {
        "items": [{"price": current.price_id, "quantity": 1}],
        "start_date": int(current.starts_at.timestamp()),
        "end_date": int(current.ends_at.timestamp()),
    }
    if current.trial_ends_at is not None:
        now["trial_end"] = int(current.trial_ends_at.timestamp())
    later: SubscriptionScheduleUpdateParamsPhase = {
        "items": [{"price": price_id, "quantity": 1}],
        "duration": {"interval": "month", "interval_count": 1},
        "proration_behavior": "none",
    }
    with calling("schedule_update", deadline) as call:
        made = call.client.v1.subscription_schedules.update(
            schedule_id,
            {"phases": [now, later], "end_behavior": "release", "proration_behavior": "none"},
            call.options(key),
        )
        return reading.schedule_of(made)


def release_schedule(deadline: Deadline, schedule_id: str, *, key: str) -> Schedule:
    """The subscription goes on as it is. Refused (GatewayRefusal) when it is over already."""
    with calling("schedule_release", deadline) as call:
        made = call.client.v1.subscription_schedules.release(schedule_id, {}, call.options(key))
        return reading.schedule_of(made)


# --- invoices -------------------------------------------------------------------------------------------


def get_invoice(deadline: Deadline, invoice_id: str) -> Invoice | None:
    try:
        with calling("invoice_get", deadline) as call:
            return reading.invoice_of(call.client.v1.invoices.retrieve(invoice_id, {}, call.options()))
    except GatewayMissing:
        return None


def void_invoice(deadline: Deadline, invoice_id: str, *, key: str) -> Invoice:
    """Nobody will be asked to pay it. Refused (GatewayRefusal) when it is not open."""
    with calling("invoice_void", deadline) as call:
        return reading.invoice_of(call.client.v1.invoices.void_invoice(invoice_id, {}, call.options(key)))


def preview_price(deadline: Deadline, subscription: Subscription, price_id: str, *, at: datetime) -> Preview:
    """What `change_price` with the same date would charge."""
    params: InvoiceCreatePreviewParams = {
        "customer": subscription.customer_id,
        "subscription": subscription.id,
        "subscription_details": {
            "items": [{"id": subscription.item_id, "price": price_id}],
            "proration_behavior": "always_invoice",
            "proration_date": int(at.timestamp()),
        },
    }
    with calling("invoice_preview", deadline) as call:
        shown = call.client.v1.invoices.create_preview(params, call.options())
        return Preview(due_now_cents=shown.amount_due, proration_date=at)
