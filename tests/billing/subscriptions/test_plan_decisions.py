"""B11.4 as a table: where an account stands × what it asks for, without any call."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from billing import plans
from billing.errors import PaymentOverdue, PaymentsDisabled, TierNotAvailable
from billing.subscriptions.plan_decisions import (
    PlanAction,
    PlanSituation,
    TierOffer,
    decide_with_payment,
    decide_without_payment,
)
from billing.subscriptions.stripe_sync import compute_grace_end, is_entitling

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
ON, OFF = TierOffer(payments_on=True, for_sale=True), TierOffer(payments_on=False, for_sale=True)

KEEP, SET, LATER, AT_ONCE, CHECKOUT, UP, DOWN = (
    PlanAction.KEEP, PlanAction.SET, PlanAction.CANCEL_LATER, PlanAction.CANCEL_NOW, PlanAction.CHECKOUT, PlanAction.UPGRADE, PlanAction.DOWNGRADE,
)  # fmt: skip
OVERDUE = PaymentOverdue

# tier, granted, health, subscribed → what asking FREE, PRO and BUSINESS leads to
TABLE = {
    "free": (("FREE", None, "none", None), (KEEP, CHECKOUT, CHECKOUT)),
    "pro": (("PRO", None, "live", "PRO"), (LATER, KEEP, UP)),
    "business": (("BUSINESS", None, "live", "BUSINESS"), (LATER, DOWN, KEEP)),
    "past due": (("PRO", None, "overdue", "PRO"), (AT_ONCE, KEEP, OVERDUE)),
    "lapsed": (("FREE", None, "overdue", "PRO"), (AT_ONCE, OVERDUE, OVERDUE)),
    "owing": (("FREE", None, "owing", "PRO"), (AT_ONCE, OVERDUE, OVERDUE)),
    "granted": (("PRO", "PRO", "none", None), (SET, KEEP, CHECKOUT)),
    "granted, now free": (("FREE", "PRO", "none", None), (KEEP, SET, CHECKOUT)),
    "granted the highest": (("BUSINESS", "BUSINESS", "none", None), (SET, SET, KEEP)),
    "raised by staff": (("BUSINESS", "BUSINESS", "live", "PRO"), (LATER, KEEP, KEEP)),
    "lowered by staff": (("PRO", "PRO", "live", "BUSINESS"), (LATER, KEEP, KEEP)),
    "freed by staff": (("FREE", None, "live", "PRO"), (LATER, KEEP, UP)),
    "a price nobody knows": (("PRO", None, "live", None), (LATER, KEEP, UP)),
}


def decided(situation, asked, offer=ON):
    move = decide_without_payment(situation, asked)
    return move if move is not None else decide_with_payment(situation, asked, offer)


def situation_of(row):
    tier, granted, health, subscribed = row
    return PlanSituation(tier=tier, granted_tier=granted, health=health, subscribed_tier=subscribed)


@pytest.mark.parametrize("name", TABLE)
def test_every_situation_and_wish_leads_to_one_move(name):
    """B11.4: each of the three askable tiers."""
    row, expected = TABLE[name]
    for asked, outcome in zip(plans.REQUESTABLE_TIERS, expected, strict=True):
        if outcome is OVERDUE:
            with pytest.raises(PaymentOverdue):
                decided(situation_of(row), asked)
        else:
            assert decided(situation_of(row), asked) is outcome, asked


@pytest.mark.parametrize("name", TABLE)
def test_without_payments_only_what_costs_money_is_refused(name):
    """B11.4: keep, FREE and grants never read the switch; everything else is `payments_off` before anything else."""
    row, expected = TABLE[name]
    for asked, outcome in zip(plans.REQUESTABLE_TIERS, expected, strict=True):
        if decide_without_payment(situation_of(row), asked) is None:
            with pytest.raises(PaymentsDisabled):
                decided(situation_of(row), asked, OFF)
        else:
            assert decided(situation_of(row), asked, OFF) is outcome


def test_what_is_not_for_sale_is_refused_before_a_debt_is_named():
    """B11.4: step 8 comes before step 9."""
    unsold = TierOffer(payments_on=True, for_sale=False)
    with pytest.raises(TierNotAvailable):
        decide_with_payment(situation_of(("FREE", None, "owing", "PRO")), "BUSINESS", unsold)


@pytest.mark.parametrize(
    ("status", "grace", "entitled"),
    [
        ("active", None, True),
        ("trialing", None, True),
        ("past_due", NOW + timedelta(seconds=1), True),
        ("past_due", NOW, False),
        ("unpaid", None, False),
        ("paused", None, False),
        ("incomplete", None, False),
        ("canceled", None, False),
    ],
)
def test_what_a_status_entitles_to(status, grace, entitled):
    """B11.3"""
    assert is_entitling(status, grace, now=NOW) is entitled


def test_a_grace_begins_once_and_ends_with_the_debt():
    """B15.1, B11.3"""
    begun = compute_grace_end("past_due", None, now=NOW, days=7)
    assert begun == NOW + timedelta(days=7)
    assert compute_grace_end("past_due", begun, now=NOW + timedelta(days=3), days=7) == begun
    assert compute_grace_end("active", begun, now=NOW, days=7) is None
