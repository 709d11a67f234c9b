"""Convert Stripe's SDK objects to our own dataclasses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

import stripe

from billing.stripe.objects import (
    CheckoutSession,
    PaymentIntent,
    PendingPriceUpdate,
    SavedCard,
    SchedulePhase,
    StripeCustomer,
    StripeDispute,
    StripeInvoice,
    StripePrice,
    StripeRefund,
    StripeSubscription,
    SubscriptionSchedule,
)


class IdentifiedObject(Protocol):
    @property
    def id(self) -> str: ...


def convert_customer(found: stripe.Customer) -> StripeCustomer:
    settings = found.invoice_settings
    return StripeCustomer(
        id=found.id, default_card_id=_get_id(settings.default_payment_method) if settings else ""
    )


def convert_card(found: stripe.PaymentMethod) -> SavedCard:
    return SavedCard(id=found.id, created_at=_to_datetime(found.created))


def convert_price(found: stripe.Price) -> StripePrice:
    recurring = found.recurring
    return StripePrice(
        id=found.id,
        active=found.active,
        currency=found.currency,
        unit_amount_cents=found.unit_amount,
        interval=recurring.interval if recurring else "",
        interval_count=recurring.interval_count if recurring else 0,
    )


def convert_checkout_session(found: stripe.checkout.Session) -> CheckoutSession:
    return CheckoutSession(
        id=found.id,
        mode=found.mode,
        status=found.status or "",
        payment_status=found.payment_status,
        url=found.url or "",
        client_reference_id=found.client_reference_id or "",
        customer_id=_get_id(found.customer),
        subtotal_cents=found.amount_subtotal or 0,
        currency=found.currency or "",
        payment_intent_id=_get_id(found.payment_intent),
        subscription_id=_get_id(found.subscription),
        expires_at=_to_datetime(found.expires_at),
        metadata=_convert_metadata(found.metadata),
    )


def convert_subscription(found: stripe.Subscription) -> StripeSubscription:
    """Convert a subscription. Schedule and latest invoice are included only if they were expanded."""
    item = found.items.data[0] if found.items.data else None
    schedule, invoice, update = found.schedule, found.latest_invoice, found.pending_update
    return StripeSubscription(
        id=found.id,
        customer_id=_get_id(found.customer),
        status=found.status,
        created_at=_to_datetime(found.created),
        item_id=item.id if item else "",
        price_id=item.price.id if item else "",
        period_start=_to_datetime(item.current_period_start) if item else None,
        period_end=_to_datetime(item.current_period_end) if item else None,
        cancel_at_period_end=found.cancel_at_period_end,
        cancel_at=_to_optional_datetime(found.cancel_at),
        trial_end=_to_optional_datetime(found.trial_end),
        schedule_id=_get_id(schedule),
        schedule=convert_schedule(schedule) if isinstance(schedule, stripe.SubscriptionSchedule) else None,
        pending_update=_convert_pending_update(update) if update else None,
        latest_invoice=convert_invoice(invoice) if isinstance(invoice, stripe.Invoice) else None,
        metadata=_convert_metadata(found.metadata),
    )


def _convert_pending_update(update: stripe.Subscription.PendingUpdate) -> PendingPriceUpdate | None:
    items = update.subscription_items
    if not items:
        return None
    return PendingPriceUpdate(price_id=items[0].price.id, expires_at=_to_datetime(update.expires_at))


def convert_schedule(found: stripe.SubscriptionSchedule) -> SubscriptionSchedule:
    current = found.current_phase
    return SubscriptionSchedule(
        id=found.id,
        status=found.status,
        subscription_id=_get_id(found.subscription),
        released_subscription_id=found.released_subscription or "",
        phases=tuple(_convert_phase(phase) for phase in found.phases),
        current_starts_at=_to_datetime(current.start_date) if current else None,
        current_ends_at=_to_datetime(current.end_date) if current else None,
    )


def _convert_phase(found: stripe.SubscriptionSchedule.Phase) -> SchedulePhase:
    return SchedulePhase(
        price_id=_get_id(found.items[0].price) if found.items else "",
        starts_at=_to_datetime(found.start_date),
        ends_at=_to_datetime(found.end_date),
        trial_ends_at=_to_optional_datetime(found.trial_end),
    )


def convert_invoice(found: stripe.Invoice) -> StripeInvoice:
    details = found.parent.subscription_details if found.parent else None
    return StripeInvoice(
        id=found.id,
        status=found.status or "",
        billing_reason=found.billing_reason or "",
        customer_id=_get_id(found.customer),
        subscription_id=_get_id(details.subscription) if details else "",
        due_cents=found.amount_due,
        remaining_cents=found.amount_remaining,
        attempt_count=found.attempt_count,
        next_attempt_at=_to_optional_datetime(found.next_payment_attempt),
        hosted_url=found.hosted_invoice_url or "",
        created_at=_to_datetime(found.created),
    )


def convert_payment_intent(found: stripe.PaymentIntent) -> PaymentIntent:
    return PaymentIntent(
        id=found.id,
        status=found.status,
        amount_cents=found.amount,
        received_cents=found.amount_received,
        currency=found.currency,
        customer_id=_get_id(found.customer),
        metadata=_convert_metadata(found.metadata),
    )


def convert_refund(found: stripe.Refund) -> StripeRefund:
    return StripeRefund(
        id=found.id,
        status=found.status or "",
        amount_cents=found.amount,
        payment_intent_id=_get_id(found.payment_intent),
    )


def convert_dispute(found: stripe.Dispute) -> StripeDispute:
    return StripeDispute(
        id=found.id,
        status=found.status,
        amount_cents=found.amount,
        charge_id=_get_id(found.charge),
        payment_intent_id=_get_id(found.payment_intent),
    )


def _get_id(field: str | IdentifiedObject | None) -> str:
    if field is None:
        return ""
    return field if isinstance(field, str) else field.id


def _convert_metadata(metadata: stripe.StripeObject | None) -> dict[str, str]:
    return {} if metadata is None else {str(key): str(value) for key, value in metadata.to_dict().items()}


def _to_datetime(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _to_optional_datetime(seconds: int | None) -> datetime | None:
    return None if seconds is None else _to_datetime(seconds)
