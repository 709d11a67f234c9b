"""Plans at Stripe: subscriptions, their schedules and their invoices. What may be changed when, B11 says."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from billing.errors import PaymentResourceMissing
from billing.stripe import converters
from billing.stripe.api_client import StripeDeadline, call_stripe
from billing.stripe.objects import (
    PriceChangePreview,
    SchedulePhase,
    StripeInvoice,
    StripeSubscription,
    SubscriptionSchedule,
)

if TYPE_CHECKING:
    from stripe.params import (
        InvoiceCreatePreviewParams,
        SubscriptionScheduleUpdateParamsPhase,
        SubscriptionUpdateParams,
    )

SUBSCRIPTION_PAGE_SIZE = 100
EXPANDED_FIELDS = ["schedule", "latest_invoice"]


def list_subscriptions(deadline: StripeDeadline, customer_id: str) -> list[StripeSubscription]:
    """All there ever were, ended ones too, each with its schedule and latest invoice."""
    with call_stripe("subscription_list", deadline) as call:
        page = call.client.v1.subscriptions.list(
            {
                "customer": customer_id,
                "status": "all",
                "limit": SUBSCRIPTION_PAGE_SIZE,
                "expand": [f"data.{name}" for name in EXPANDED_FIELDS],
            },
            call.build_options(),
        )
        return [converters.convert_subscription(found) for found in page.auto_paging_iter()]


def get_subscription(deadline: StripeDeadline, subscription_id: str) -> StripeSubscription | None:
    """None counts as ended (B14.4)."""
    try:
        with call_stripe("subscription_get", deadline) as call:
            found = call.client.v1.subscriptions.retrieve(
                subscription_id, {"expand": EXPANDED_FIELDS}, call.build_options()
            )
            return converters.convert_subscription(found)
    except PaymentResourceMissing:
        return None


def change_subscription_price(
    deadline: StripeDeadline,
    subscription: StripeSubscription,
    price_id: str,
    *,
    key: str,
    proration_date: datetime | None = None,
) -> StripeSubscription:
    """At once, charged at once; unpaid, the old price stays and a pending update waits (B11.5)."""
    params: SubscriptionUpdateParams = {
        "items": [{"id": subscription.item_id, "price": price_id}],
        "proration_behavior": "always_invoice",
        "payment_behavior": "pending_if_incomplete",
        "expand": EXPANDED_FIELDS,
    }
    if proration_date is not None:
        params["proration_date"] = int(proration_date.timestamp())
    with call_stripe("subscription_price", deadline) as call:
        return converters.convert_subscription(
            call.client.v1.subscriptions.update(subscription.id, params, call.build_options(key))
        )


def set_cancel_at_period_end(
    deadline: StripeDeadline, subscription_id: str, *, cancel: bool, key: str
) -> StripeSubscription:
    """True ends it with its period; False takes that back, also a date that was set."""
    params: SubscriptionUpdateParams = {"cancel_at_period_end": cancel, "expand": EXPANDED_FIELDS}
    with call_stripe("subscription_cancel_later", deadline) as call:
        return converters.convert_subscription(
            call.client.v1.subscriptions.update(subscription_id, params, call.build_options(key))
        )


def cancel_subscription(
    deadline: StripeDeadline, subscription_id: str, *, key: str, prorate: bool = False
) -> StripeSubscription | None:
    """Now. None when Stripe has it no more."""
    try:
        with call_stripe("subscription_cancel", deadline) as call:
            made = call.client.v1.subscriptions.cancel(
                subscription_id, {"prorate": prorate, "invoice_now": prorate}, call.build_options(key)
            )
            return converters.convert_subscription(made)
    except PaymentResourceMissing:
        return None


# --- schedules ------------------------------------------------------------------------------------------


def create_schedule(deadline: StripeDeadline, subscription_id: str, *, key: str) -> SubscriptionSchedule:
    """From the subscription as it is; Stripe allows no other parameter in this call."""
    with call_stripe("schedule_create", deadline) as call:
        made = call.client.v1.subscription_schedules.create(
            {"from_subscription": subscription_id}, call.build_options(key)
        )
        return converters.convert_schedule(made)


def get_schedule(deadline: StripeDeadline, schedule_id: str) -> SubscriptionSchedule | None:
    try:
        with call_stripe("schedule_get", deadline) as call:
            found = call.client.v1.subscription_schedules.retrieve(schedule_id, {}, call.build_options())
            return converters.convert_schedule(found)
    except PaymentResourceMissing:
        return None


def schedule_price_change(
    deadline: StripeDeadline, schedule_id: str, *, current: SchedulePhase, price_id: str, key: str
) -> SubscriptionSchedule:
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
    with call_stripe("schedule_update", deadline) as call:
        made = call.client.v1.subscription_schedules.update(
            schedule_id,
            {"phases": [now, later], "end_behavior": "release", "proration_behavior": "none"},
            call.build_options(key),
        )
        return converters.convert_schedule(made)


def release_schedule(deadline: StripeDeadline, schedule_id: str, *, key: str) -> SubscriptionSchedule:
    """The subscription goes on as it is. Refused (GatewayRefusal) when it is over already."""
    with call_stripe("schedule_release", deadline) as call:
        made = call.client.v1.subscription_schedules.release(schedule_id, {}, call.build_options(key))
        return converters.convert_schedule(made)


# --- invoices -------------------------------------------------------------------------------------------


def get_invoice(deadline: StripeDeadline, invoice_id: str) -> StripeInvoice | None:
    try:
        with call_stripe("invoice_get", deadline) as call:
            return converters.convert_invoice(
                call.client.v1.invoices.retrieve(invoice_id, {}, call.build_options())
            )
    except PaymentResourceMissing:
        return None


def void_invoice(deadline: StripeDeadline, invoice_id: str, *, key: str) -> StripeInvoice:
    """Nobody will be asked to pay it. Refused (GatewayRefusal) when it is not open."""
    with call_stripe("invoice_void", deadline) as call:
        return converters.convert_invoice(
            call.client.v1.invoices.void_invoice(invoice_id, {}, call.build_options(key))
        )


def preview_price_change(
    deadline: StripeDeadline, subscription: StripeSubscription, price_id: str, *, at: datetime
) -> PriceChangePreview:
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
    with call_stripe("invoice_preview", deadline) as call:
        shown = call.client.v1.invoices.create_preview(params, call.build_options())
        return PriceChangePreview(due_now_cents=shown.amount_due, proration_date=at)
