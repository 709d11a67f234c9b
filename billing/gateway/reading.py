"""Stripe's objects become ours, here and nowhere else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

import stripe

from billing.gateway.shapes import (
    Card,
    CheckoutSession,
    Customer,
    Dispute,
    Invoice,
    PaymentIntent,
    PendingUpdate,
    Phase,
    Price,
    Refund,
    Schedule,
    Subscription,
)


class HasId(Protocol):
    @property
    def id(self) -> str: ...


def customer_of(found: stripe.Customer) -> Customer:
    settings = found.invoice_settings
    return Customer(id=found.id, default_card_id=_id(settings.default_payment_method) if settings else "")


def card_of(found: stripe.PaymentMethod) -> Card:
    return Card(id=found.id, created_at=_instant(found.created))


def price_of(found: stripe.Price) -> Price:
    recurring = found.recurring
    return Price(
        id=found.id,
        active=found.active,
        currency=found.currency,
        unit_amount_cents=found.unit_amount,
        interval=recurring.interval if recurring else "",
        interval_count=recurring.interval_count if recurring else 0,
    )


def session_of(found: stripe.checkout.Session) -> CheckoutSession:
    return CheckoutSession(
        id=found.id,
        mode=found.mode,
        status=found.status or "",
        payment_status=found.payment_status,
        url=found.url or "",
        client_reference_id=found.client_reference_id or "",
        customer_id=_id(found.customer),
        subtotal_cents=found.amount_subtotal or 0,
        currency=found.currency or "",
        payment_intent_id=_id(found.payment_intent),
        subscription_id=_id(found.subscription),
        expires_at=_instant(found.expires_at),
        metadata=_texts(found.metadata),
    )


def subscription_of(found: stripe.Subscription) -> Subscription:
    """Schedule and latest invoice are there when they were asked for with it."""
    item = found.items.data[0] if found.items.data else None
    schedule, invoice, update = found.schedule, found.latest_invoice, found.pending_update
    return Subscription(
        id=found.id,
        customer_id=_id(found.customer),
        status=found.status,
        created_at=_instant(found.created),
        item_id=item.id if item else "",
        price_id=item.price.id if item else "",
        period_start=_instant(item.current_period_start) if item else None,
        period_end=_instant(item.current_period_end) if item else None,
        cancel_at_period_end=found.cancel_at_period_end,
        cancel_at=_perhaps(found.cancel_at),
        trial_end=_perhaps(found.trial_end),
        schedule_id=_id(schedule),
        schedule=schedule_of(schedule) if isinstance(schedule, stripe.SubscriptionSchedule) else None,
        pending_update=_pending(update) if update else None,
        latest_invoice=invoice_of(invoice) if isinstance(invoice, stripe.Invoice) else None,
        metadata=_texts(found.metadata),
    )


def _pending(update: stripe.Subscription.PendingUpdate) -> PendingUpdate | None:
    items = update.subscription_items
    if not items:
        return None
    return PendingUpdate(price_id=items[0].price.id, expires_at=_instant(update.expires_at))


def schedule_of(found: stripe.SubscriptionSchedule) -> Schedule:
    current = found.current_phase
    return Schedule(
        id=found.id,
        status=found.status,
        subscription_id=_id(found.subscription),
        released_subscription_id=found.released_subscription or "",
        phases=tuple(_phase(phase) for phase in found.phases),
        current_starts_at=_instant(current.start_date) if current else None,
        current_ends_at=_instant(current.end_date) if current else None,
    )


def _phase(found: stripe.SubscriptionSchedule.Phase) -> Phase:
    return Phase(
        price_id=_id(found.items[0].price) if found.items else "",
        starts_at=_instant(found.start_date),
        ends_at=_instant(found.end_date),
        trial_ends_at=_perhaps(found.trial_end),
    )


def invoice_of(found: stripe.Invoice) -> Invoice:
    details = found.parent.subscription_details if found.parent else None
    return Invoice(
        id=found.id,
        status=found.status or "",
        billing_reason=found.billing_reason or "",
        customer_id=_id(found.customer),
        subscription_id=_id(details.subscription) if details else "",
        due_cents=found.amount_due,
        remaining_cents=found.amount_remaining,
        attempt_count=found.attempt_count,
        next_attempt_at=_perhaps(found.next_payment_attempt),
        hosted_url=found.hosted_invoice_url or "",
        created_at=_instant(found.created),
    )


def intent_of(found: stripe.PaymentIntent) -> PaymentIntent:
    return PaymentIntent(
        id=found.id,
        status=found.status,
        amount_cents=found.amount,
        received_cents=found.amount_received,
        currency=found.currency,
        customer_id=_id(found.customer),
        metadata=_texts(found.metadata),
    )


def refund_of(found: stripe.Refund) -> Refund:
    return Refund(
        id=found.id,
        status=found.status or "",
        amount_cents=found.amount,
        payment_intent_id=_id(found.payment_intent),
    )


def dispute_of(found: stripe.Dispute) -> Dispute:
    return Dispute(
        id=found.id,
        status=found.status,
        amount_cents=found.amount,
        charge_id=_id(found.charge),
        payment_intent_id=_id(found.payment_intent),
    )


def _id(field: str | HasId | None) -> str:
    """Of what may be named or be there itself."""
    if field is None:
        return ""
    return field if isinstance(field, str) else field.id


def _texts(metadata: stripe.StripeObject | None) -> dict[str, str]:
    return {} if metadata is None else {str(key): str(value) for key, value in metadata.to_dict().items()}


def _instant(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _perhaps(seconds: int | None) -> datetime | None:
    return None if seconds is None else _instant(seconds)
