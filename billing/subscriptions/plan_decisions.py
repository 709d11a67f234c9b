"""Decide what a request for a plan leads to: pure functions of the account's situation, without calls to Stripe."""

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
    "past_due": "overdue",  # live too, but nothing more is sold until it is paid
    "unpaid": "owing",
    "paused": "owing",
}  # any other status counts as no subscription
LIVE_STATUSES = ("active", "trialing", "past_due")


class PlanAction(StrEnum):
    KEEP = "KEEP"
    SET = "SET"  # only in our database
    CANCEL_LATER = "CANCEL_LATER"
    CANCEL_NOW = "CANCEL_NOW"
    CHECKOUT = "CHECKOUT"
    UPGRADE = "UPGRADE"
    DOWNGRADE = "DOWNGRADE"


@dataclass(frozen=True, kw_only=True)
class PlanSituation:
    """The account's situation. `subscribed_tier` is the paid tier, None if no tier has that price."""

    tier: str
    granted_tier: str | None
    health: SubscriptionHealth
    subscribed_tier: str | None


@dataclass(frozen=True, kw_only=True)
class TierOffer:
    payments_on: bool
    for_sale: bool


def decide_without_payment(situation: PlanSituation, requested_tier: str) -> PlanAction | None:
    """Return the action that needs no payment, or None if `decide_with_payment` must decide."""
    subscribed = situation.health != "none"
    if requested_tier == "FREE" and subscribed:
        return PlanAction.CANCEL_LATER if situation.health == "live" else PlanAction.CANCEL_NOW
    if requested_tier == situation.tier:
        return PlanAction.KEEP
    granted = situation.granted_tier
    if requested_tier == "FREE" or (
        not subscribed and granted and plans.get_tier_rank(requested_tier) <= plans.get_tier_rank(granted)
    ):
        return PlanAction.SET
    return None


def decide_with_payment(situation: PlanSituation, requested_tier: str, offer: TierOffer) -> PlanAction:
    """Decide between checkout, upgrade, downgrade and keep, or refuse."""
    if not offer.payments_on:
        raise PaymentsDisabled
    if not offer.for_sale:
        raise TierNotAvailable
    if situation.health in ("overdue", "owing"):
        raise PaymentOverdue
    if situation.health == "none":
        return PlanAction.CHECKOUT
    requested_rank, paid_rank = (
        plans.get_tier_rank(requested_tier),
        plans.get_tier_rank(situation.subscribed_tier or situation.tier),
    )
    if requested_rank == paid_rank:
        return PlanAction.KEEP
    return PlanAction.UPGRADE if requested_rank > paid_rank else PlanAction.DOWNGRADE
