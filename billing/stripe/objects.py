"""Our view of Stripe's objects: frozen dataclasses with amounts in cents and aware datetimes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class StripeCustomer:
    id: str
    default_card_id: str  # "" if none is set


@dataclass(frozen=True, kw_only=True)
class SavedCard:
    """A card saved for charges without the customer present."""

    id: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class StripePrice:
    id: str
    active: bool
    currency: str
    unit_amount_cents: int | None  # None for tiered or metered prices
    interval: str  # "" for one-time prices
    interval_count: int

    @property
    def is_monthly(self) -> bool:
        return self.interval == "month" and self.interval_count == 1


@dataclass(frozen=True, kw_only=True)
class CheckoutSession:
    """A payment page. `status` is open, complete or expired; `payment_status` is paid, unpaid or no_payment_required."""

    id: str
    mode: str
    status: str
    payment_status: str
    url: str
    client_reference_id: str
    customer_id: str
    subtotal_cents: int
    currency: str
    payment_intent_id: str
    subscription_id: str
    expires_at: datetime
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SchedulePhase:
    """A phase of a schedule at one price."""

    price_id: str
    starts_at: datetime
    ends_at: datetime
    trial_ends_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class SubscriptionSchedule:
    """Scheduled price changes. `status` is not_started, active, completed, released or canceled."""

    id: str
    status: str
    subscription_id: str  # "" once released
    released_subscription_id: str
    phases: tuple[SchedulePhase, ...]
    current_starts_at: datetime | None
    current_ends_at: datetime | None

    @property
    def is_over(self) -> bool:
        return self.status in ("completed", "released", "canceled")


@dataclass(frozen=True, kw_only=True)
class StripeInvoice:
    """`status` is draft, open, paid, uncollectible or void; `billing_reason` tells renewals from first and upgrade invoices."""

    id: str
    status: str
    billing_reason: str
    customer_id: str
    subscription_id: str  # "" if it belongs to no subscription
    due_cents: int
    remaining_cents: int
    attempt_count: int
    next_attempt_at: datetime | None  # None if Stripe plans no further attempt
    hosted_url: str
    created_at: datetime

    @property
    def is_renewal(self) -> bool:
        return self.billing_reason == "subscription_cycle"


@dataclass(frozen=True, kw_only=True)
class PendingPriceUpdate:
    """An upgrade that waits for its payment."""

    price_id: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class StripeSubscription:
    """A subscription with the price and period of its only item; we never sell more than one."""

    id: str
    customer_id: str
    status: str
    created_at: datetime
    item_id: str  # "" if it has no item
    price_id: str
    period_start: datetime | None
    period_end: datetime | None
    cancel_at_period_end: bool
    cancel_at: datetime | None
    trial_end: datetime | None
    schedule_id: str
    schedule: SubscriptionSchedule | None
    pending_update: PendingPriceUpdate | None
    latest_invoice: StripeInvoice | None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        return self.status in ("active", "trialing", "past_due")

    @property
    def is_owing(self) -> bool:
        return self.status in ("unpaid", "paused")

    @property
    def is_over(self) -> bool:
        return self.status in ("canceled", "incomplete_expired")


@dataclass(frozen=True, kw_only=True)
class PriceChangePreview:
    """The cost of a price change at a date; the change costs the same if it passes this date on."""

    due_now_cents: int
    proration_date: datetime


@dataclass(frozen=True, kw_only=True)
class PaymentIntent:
    id: str
    status: str
    amount_cents: int
    received_cents: int
    currency: str
    customer_id: str
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StripeRefund:
    """`status` is pending, requires_action, succeeded, failed or canceled."""

    id: str
    status: str
    amount_cents: int
    payment_intent_id: str

    @property
    def takes_money(self) -> bool:
        return self.status in ("pending", "succeeded")


@dataclass(frozen=True, kw_only=True)
class StripeDispute:
    """A dispute of a charge. A warning is only an inquiry by the bank and moves no money."""

    id: str
    status: str
    amount_cents: int
    charge_id: str
    payment_intent_id: str

    @property
    def is_warning(self) -> bool:
        return self.status.startswith("warning_") or self.status == "prevented"


@dataclass(frozen=True, kw_only=True)
class WebhookEvent:
    """An event with a valid signature. The object in its payload is only a hint."""

    id: str
    type: str
    api_version: str
    livemode: bool
    created_at: datetime
    payload: Mapping[str, Any]
