"""Subscriptions, schedules and invoices at Stripe."""

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
    """List all subscriptions, ended ones included, with their schedule and latest invoice."""
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
    """Return the subscription, or None, which callers treat as ended."""
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
    """Change the price and charge at once. If unpaid, the old price stays and a pending update waits."""
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
    """Cancel at the end of the period, or undo that and any other cancellation date."""
    params: SubscriptionUpdateParams = {"cancel_at_period_end": cancel, "expand": EXPANDED_FIELDS}
    with call_stripe("subscription_cancel_later", deadline) as call:
        return converters.convert_subscription(
            call.client.v1.subscriptions.update(subscription_id, params, call.build_options(key))
        )


def cancel_subscription(
    deadline: StripeDeadline, subscription_id: str, *, key: str, prorate: bool = False
) -> StripeSubscription | None:
    """Cancel immediately. Return None if Stripe no longer has it."""
    try:
        with call_stripe("subscription_cancel", deadline) as call:
            made = call.client.v1.subscriptions.cancel(
                subscription_id, {"prorate": prorate, "invoice_now": prorate}, call.build_options(key)
            )
            return converters.convert_subscription(made)
    except PaymentResourceMissing:
        return None


# --- Schedules ---


def create_schedule(deadline: StripeDeadline, subscription_id: str, *, key: str) -> SubscriptionSchedule:
    """Create a schedule from the subscription as it is; Stripe allows no other parameter in this call."""
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
    """Keep the current phase, then run one month at the new price and release the schedule."""
    current_phase: SubscriptionScheduleUpdateParamsPhase = {
        "items": [{"price": current.price_id, "quantity": 1}],
        "start_date": int(current.starts_at.timestamp()),
        "end_date": int(current.ends_at.timestamp()),
    }
    if current.trial_ends_at is not None:
        current_phase["trial_end"] = int(current.trial_ends_at.timestamp())
    next_phase: SubscriptionScheduleUpdateParamsPhase = {
        "items": [{"price": price_id, "quantity": 1}],
        "duration": {"interval": "month", "interval_count": 1},
        "proration_behavior": "none",
    }
    with call_stripe("schedule_update", deadline) as call:
        made = call.client.v1.subscription_schedules.update(
            schedule_id,
            {"phases": [current_phase, next_phase], "end_behavior": "release", "proration_behavior": "none"},
            call.build_options(key),
        )
        return converters.convert_schedule(made)


def release_schedule(deadline: StripeDeadline, schedule_id: str, *, key: str) -> SubscriptionSchedule:
    """Detach the schedule; the subscription continues as it is. Raises PaymentServiceRefusal if it is over."""
    with call_stripe("schedule_release", deadline) as call:
        made = call.client.v1.subscription_schedules.release(schedule_id, {}, call.build_options(key))
        return converters.convert_schedule(made)


# --- Invoices ---


def get_invoice(deadline: StripeDeadline, invoice_id: str) -> StripeInvoice | None:
    try:
        with call_stripe("invoice_get", deadline) as call:
            return converters.convert_invoice(
                call.client.v1.invoices.retrieve(invoice_id, {}, call.build_options())
            )
    except PaymentResourceMissing:
        return None


def void_invoice(deadline: StripeDeadline, invoice_id: str, *, key: str) -> StripeInvoice:
    """Void an open invoice. Raises PaymentServiceRefusal if it is not open."""
    with call_stripe("invoice_void", deadline) as call:
        return converters.convert_invoice(
            call.client.v1.invoices.void_invoice(invoice_id, {}, call.build_options(key))
        )


def preview_price_change(
    deadline: StripeDeadline, subscription: StripeSubscription, price_id: str, *, at: datetime
) -> PriceChangePreview:
    """Return what `change_subscription_price` with the same date would charge."""
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
        preview = call.client.v1.invoices.create_preview(params, call.build_options())
        return PriceChangePreview(due_now_cents=preview.amount_due, proration_date=at)
