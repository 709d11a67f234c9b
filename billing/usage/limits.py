"""Whether a user may cause more: asked of Redis, confirmed in Postgres before anybody is refused (B6)."""

from __future__ import annotations

import logging
from datetime import datetime

from django.db import Error as AnyDatabaseError
from django.utils import timezone

from billing import counters, metrics, plans, policies, queries
from billing.counters import Amount, Seen
from billing.errors import CountersDown, LimitReached, LimitReason, WindowName
from billing.queries import Meter, Standing
from billing.usage import windows

logger = logging.getLogger(__name__)

TRIES = 3  # of one admission: counters may vanish under it twice (B6.7)
NAMES: dict[plans.WindowKind, WindowName] = {"DAY": "daily", "WEEK": "weekly"}


def check(user_id: int) -> None:
    """Raises LimitReached when a window is used up; what cannot be read refuses nobody (B6.4)."""
    if policies.rules().is_unlimited(user_id):
        metrics.checks.labels("allowed").inc()
        return
    try:
        refusal = _refusal(user_id, timezone.now())
    except (CountersDown, AnyDatabaseError) as problem:
        _degraded(problem)
        return
    if refusal is not None:
        metrics.checks.labels(refusal.window).inc()
        raise refusal
    metrics.checks.labels("allowed").inc()


def admit(user_id: int, hold: str, *, checked: bool = False) -> None:
    """Check the limit and hold money for the turn `hold` names, in one round trip.

    Raises LimitReached with reason `held` when only what other turns hold keeps this one out. `checked`: the check has
    passed just now, so that with holds off nothing is left to do (B7.1).
    """
    rules = policies.rules()
    if not rules.policy.turn_hold_microdollars or rules.is_unlimited(user_id):
        if not checked:
            check(user_id)
        return
    try:
        refusal = _hold(user_id, hold, rules, timezone.now())
    except (CountersDown, AnyDatabaseError) as problem:
        _degraded(problem)
        return
    if refusal is not None:
        metrics.checks.labels("held" if refusal.reason == "held" else refusal.window).inc()
        raise refusal
    metrics.checks.labels("allowed").inc()


def renew(user_id: int, hold: str) -> None:
    """A running turn keeps what is held for it; workers ask at most every five minutes (B6.7)."""
    rules = policies.rules()
    amount_microdollars = rules.policy.turn_hold_microdollars
    if amount_microdollars and not rules.is_unlimited(user_id):
        try:
            counters.renew_hold(user_id, hold, amount_microdollars)
        except CountersDown:
            logger.warning("A hold could not be renewed: Redis is away.")


def settle(user_id: int, hold: str) -> None:
    """Nothing is held for the turn any more; its calls are recorded by now. A hold that stays expires (B6.7)."""
    rules = policies.rules()
    if rules.policy.turn_hold_microdollars and not rules.is_unlimited(user_id):
        try:
            counters.drop_hold(user_id, hold)
        except CountersDown:
            logger.warning("A hold could not be dropped, it expires by itself: Redis is away.")


def _degraded(problem: Exception) -> None:
    logger.warning("Limits could not be checked, the user may go on: %s", type(problem).__name__)
    metrics.checks.labels("degraded").inc()


# --- use ------------------------------------------------------------------------------------------------


def _refusal(user_id: int, now: datetime) -> LimitReached | None:
    seen = counters.read(user_id, plans.day_of(now), plans.week_of(now))
    if seen.daily is None or seen.weekly is None or seen.entitlement is None:
        stands = windows.rebuild(user_id, now)  # by the rows: nothing is left to confirm
    elif _has_room(seen.daily, seen.weekly, seen.entitlement):
        return None
    else:
        stands = _confirmed(user_id, seen, now)
    return _reached(stands, stands.exhausted, now)


def _has_room(daily: Amount, weekly: Amount, entitlement: plans.Entitlement) -> bool:
    limits = policies.rules().limits_microdollars(entitlement)
    return not any(
        plans.is_exhausted(amount.used_microdollars, limit)
        for amount, limit in zip((daily, weekly), limits, strict=True)
    )


def _confirmed(user_id: int, seen: Seen, now: datetime) -> Standing:
    """The rows decide; where Redis disagrees with them, it is corrected (B6.5)."""
    stands = windows.load(user_id, now)
    known = (seen.daily, seen.weekly, seen.entitlement)
    if known != (_amount(stands.daily), _amount(stands.weekly), stands.entitlement):
        counters.correct(windows.copies(stands))
    return stands


def _amount(meter: Meter) -> Amount:
    return Amount(used_microdollars=meter.used_microdollars, version=meter.version)


def _reached(
    stands: Standing, meter: Meter | None, now: datetime, reason: LimitReason = "used"
) -> LimitReached | None:
    if meter is None:
        return None
    return LimitReached(
        window=NAMES[meter.window.kind],
        resets_at=meter.window.resets_at,
        reason=reason,
        reset_cost_cents=policies.rules().policy.reset_cost_cents,
        can_reset=not queries.reset_refusal(stands, now),
    )


# --- holds ----------------------------------------------------------------------------------------------


def _hold(user_id: int, hold: str, rules: policies.Rules, now: datetime) -> LimitReached | None:
    """Copies that are missing or wrong are put right and asked again; in the end nobody is kept out by them."""
    limits = {tier: rules.limits_microdollars(plans.Entitlement(tier=tier)) for tier in plans.TIERS}
    for _ in range(TRIES):
        held = counters.hold(
            user_id,
            hold,
            amount_microdollars=rules.policy.turn_hold_microdollars,
            day=plans.day_of(now),
            week=plans.week_of(now),
            limits_by_tier=limits,
        )
        if held.answer == "stored":
            return None
        if held.answer == "missing":
            stands = windows.rebuild(user_id, now)
            full = stands.exhausted
        else:
            stands = _confirmed(user_id, held.seen, now)
            full = _full(stands, held.held_microdollars)
        if full is not None:
            return _reached(stands, full, now, "used" if full.exhausted else "held")
    return None


def _full(stands: Standing, held_microdollars: int) -> Meter | None:
    """Use by the rows, holds by Redis; a window that is used up before one that is only held, the weekly one first."""
    if stands.exhausted is not None:
        return stands.exhausted
    return next(
        (
            meter
            for meter in (stands.weekly, stands.daily)
            if plans.is_exhausted(meter.used_microdollars + held_microdollars, meter.limit_microdollars)
        ),
        None,
    )
