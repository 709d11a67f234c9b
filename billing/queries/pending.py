"""What will become of a plan by itself: asked at Stripe, kept for half a minute (B12.3, B12.4)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

import msgspec
from django.utils import timezone

from billing import counters, gateway, plans
from billing.errors import CountersDown, GatewayError, PaymentsOff
from billing.models import TierPolicy

logger = logging.getLogger(__name__)

LOOK_SECONDS = 8.0
LIVE = ("active", "trialing", "past_due")


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A tier to come and when, and where an upgrade that waits for its payment is paid."""

    tier: str | None = None
    effective_at: datetime | None = None
    invoice_url: str = ""


NOTHING = Pending()


def of(subscription_id: str, *, user_id: int, age: str, keep: bool) -> Pending | None:
    """None: Stripe could not be asked, and the next who wants to know asks again.

    `age` names the newest plan change and the last sync: after either, what was kept is not found any more, whoever
    stores it late. While a change is being made nothing is kept.
    """
    if keep and (kept := _kept(user_id, age)) is not None:
        return kept
    try:
        found = gateway.get_subscription(gateway.in_request(LOOK_SECONDS), subscription_id)
    except (GatewayError, PaymentsOff) as problem:
        logger.warning(
            "What is pending for %s could not be looked up: %s.", subscription_id, type(problem).__name__
        )
        return None
    to_come = read(found, timezone.now())
    if keep:
        _keep(user_id, age, to_come)
    return to_come


def read(found: gateway.Subscription | None, now: datetime) -> Pending:
    if found is None or not found.is_live:
        return NOTHING
    invoice = found.latest_invoice
    unpaid = found.pending_update is not None and invoice is not None and invoice.status == "open"
    tier, effective_at = _next_tier(found, now)
    return Pending(
        tier=tier, effective_at=effective_at, invoice_url=invoice.hosted_url if unpaid and invoice else ""
    )


def _next_tier(found: gateway.Subscription, now: datetime) -> tuple[str | None, datetime | None]:
    if found.cancel_at_period_end or found.cancel_at is not None:
        return "FREE", found.cancel_at or found.period_end
    schedule = found.schedule
    if schedule is None or schedule.is_over:
        return None, None
    for phase in schedule.phases:
        if phase.starts_at > now:
            tier = _tier_of(phase.price_id, found.id)
            return tier, phase.starts_at if tier else None
    return None, None


def _tier_of(price_id: str, subscription_id: str) -> str | None:
    tier = TierPolicy.objects.filter(stripe_price_id=price_id).values_list("tier", flat=True).first()
    if tier is None:
        logger.warning(
            "The schedule of %s leads to the price %s, which no tier has.", subscription_id, price_id
        )
    return tier if tier in plans.ASKABLE else None


# --- kept -----------------------------------------------------------------------------------------------


def _kept(user_id: int, age: str) -> Pending | None:
    try:
        text = counters.read_pending(user_id, age)
        return msgspec.json.decode(text, type=Pending) if text else None
    except (CountersDown, msgspec.MsgspecError):
        return None


def _keep(user_id: int, age: str, to_come: Pending) -> None:
    try:
        counters.keep_pending(user_id, age, msgspec.json.encode(to_come).decode())
    except CountersDown:
        logger.info("What is pending could not be kept; it is asked again.")
