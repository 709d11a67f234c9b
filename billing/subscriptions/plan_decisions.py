"""What asking for a plan leads to: a table of situations and wishes, without any call (B11.4, steps 5 to 10)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from billing import plans
from billing.errors import PaymentOverdue, PaymentsDisabled, TierNotAvailable

SubscriptionHealth = Literal["none", "live", "overdue", "owing"]

HEALTH_BY_STATUS: dict[str, SubscriptionHealth] = {
    "active": "live",
    "trialing": "live",
    "past_due": "overdue",  # live too, but nothing is sold on top of a debt
    "unpaid": "owing",
    "paused": "owing",
}  # any other word of Stripe: there is no subscription (B11.2)
LIVE_STATUSES = ("active", "trialing", "past_due")


class PlanAction(StrEnum):
    """The one thing that is done about a request."""

    KEEP = "KEEP"
    SET = "SET"  # in the database alone
    CANCEL_LATER = "CANCEL_LATER"
    CANCEL_NOW = "CANCEL_NOW"
    CHECKOUT = "CHECKOUT"
    UPGRADE = "UPGRADE"
    DOWNGRADE = "DOWNGRADE"


@dataclass(frozen=True, kw_only=True)
class PlanSituation:
    """Where an account stands when it asks; `subscribed_tier` is what it pays for, None if no tier has that price."""

    tier: str
    granted_tier: str | None
    health: SubscriptionHealth
    subscribed_tier: str | None


@dataclass(frozen=True, kw_only=True)
class TierOffer:
    """Whether the asked tier can be bought at this moment."""

    payments_on: bool
    for_sale: bool


def decide_without_payment(situation: PlanSituation, asked: str) -> PlanAction | None:
    """What never depends on whether payments are switched on; None when money must decide (steps 5 to 7)."""
    subscribed = situation.health != "none"
    if asked == "FREE" and subscribed:
        return PlanAction.CANCEL_LATER if situation.health == "live" else PlanAction.CANCEL_NOW
    if asked == situation.tier:
        return PlanAction.KEEP
    granted = situation.granted_tier
    if asked == "FREE" or (
        not subscribed and granted and plans.get_tier_rank(asked) <= plans.get_tier_rank(granted)
    ):
        return PlanAction.SET
    return None


def decide_with_payment(situation: PlanSituation, asked: str, offer: TierOffer) -> PlanAction:
    """The rest: sold, refused, or already paid for (steps 8 to 10)."""
    if not offer.payments_on:
        raise PaymentsDisabled
    if not offer.for_sale:
        raise TierNotAvailable
    if situation.health in ("overdue", "owing"):
        raise PaymentOverdue
    if situation.health == "none":
        return PlanAction.CHECKOUT
    asked_rank, paid_rank = (
        plans.get_tier_rank(asked),
        plans.get_tier_rank(situation.subscribed_tier or situation.tier),
    )
    if asked_rank == paid_rank:
        return PlanAction.KEEP
    return PlanAction.UPGRADE if asked_rank > paid_rank else PlanAction.DOWNGRADE
