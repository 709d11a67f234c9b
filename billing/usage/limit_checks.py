"""Whether a user may cause more: asked of Redis, confirmed in Postgres before anybody is refused (B6)."""

from __future__ import annotations

import logging
from datetime import datetime

from django.db import Error as AnyDatabaseError
from django.utils import timezone

from billing import metrics, plans, policies, redis_counters
from billing.errors import CountersUnavailable, LimitReached, LimitReason, WindowName
from billing.redis_counters import CachedUsage, WindowAmount
from billing.selectors import usage_status
from billing.selectors.usage_status import UsageStatus, WindowUsage
from billing.usage import windows

logger = logging.getLogger(__name__)

MAX_HOLD_ATTEMPTS = 3  # of one admission: counters may vanish under it twice (B6.7)
WINDOW_NAMES: dict[plans.WindowKind, WindowName] = {"DAY": "daily", "WEEK": "weekly"}


def check_limits(user_id: int) -> None:
    """Raises LimitReached when a window is used up; what cannot be read refuses nobody (B6.4)."""
    if policies.get_rules().is_unlimited(user_id):
        metrics.limit_checks.labels("allowed").inc()
        return
    try:
        refusal = _find_refusal(user_id, timezone.now())
    except (CountersUnavailable, AnyDatabaseError) as problem:
        _record_degraded(problem)
        return
    if refusal is not None:
        metrics.limit_checks.labels(refusal.window).inc()
        raise refusal
    metrics.limit_checks.labels("allowed").inc()


def check_limits_and_hold(user_id: int, hold: str, *, checked: bool = False) -> None:
    """Check the limit and hold money for the turn `hold` names, in one round trip.

    Raises LimitReached with reason `held` when only what other turns hold keeps this one out. `checked`: the check has
    passed just now, so that with holds off nothing is left to do (B7.1).
    """
    rules = policies.get_rules()
    if not rules.policy.turn_hold_microdollars or rules.is_unlimited(user_id):
        if not checked:
            check_limits(user_id)
        return
    try:
        refusal = _try_hold(user_id, hold, rules, timezone.now())
    except (CountersUnavailable, AnyDatabaseError) as problem:
        _record_degraded(problem)
        return
    if refusal is not None:
        metrics.limit_checks.labels("held" if refusal.reason == "held" else refusal.window).inc()
        raise refusal
    metrics.limit_checks.labels("allowed").inc()


def renew_turn_hold(user_id: int, hold: str) -> None:
    """A running turn keeps what is held for it; workers ask at most every five minutes (B6.7)."""
    rules = policies.get_rules()
    amount_microdollars = rules.policy.turn_hold_microdollars
    if amount_microdollars and not rules.is_unlimited(user_id):
        try:
            redis_counters.renew_hold(user_id, hold, amount_microdollars)
        except CountersUnavailable:
            logger.warning("A hold could not be renewed: Redis is away.")


def release_turn_hold(user_id: int, hold: str) -> None:
    """Nothing is held for the turn any more; its calls are recorded by now. A hold that stays expires (B6.7)."""
    rules = policies.get_rules()
    if rules.policy.turn_hold_microdollars and not rules.is_unlimited(user_id):
        try:
            redis_counters.release_hold(user_id, hold)
        except CountersUnavailable:
            logger.warning("A hold could not be dropped, it expires by itself: Redis is away.")


def _record_degraded(problem: Exception) -> None:
    logger.warning("Limits could not be checked, the user may go on: %s", type(problem).__name__)
    metrics.limit_checks.labels("degraded").inc()


# --- use ------------------------------------------------------------------------------------------------


def _find_refusal(user_id: int, now: datetime) -> LimitReached | None:
    seen = redis_counters.read_cached_usage(user_id, plans.get_day_window(now), plans.get_week_window(now))
    if seen.daily is None or seen.weekly is None or seen.entitlement is None:
        stands = windows.rebuild_copies(user_id, now)  # by the rows: nothing is left to confirm
    elif _has_room(seen.daily, seen.weekly, seen.entitlement):
        return None
    else:
        stands = _confirm_usage(user_id, seen, now)
    return _build_refusal(stands, stands.exhausted_window, now)


def _has_room(daily: WindowAmount, weekly: WindowAmount, entitlement: plans.Entitlement) -> bool:
    limits = policies.get_rules().get_limits_microdollars(entitlement)
    return not any(
        plans.is_exhausted(amount.used_microdollars, limit)
        for amount, limit in zip((daily, weekly), limits, strict=True)
    )


def _confirm_usage(user_id: int, seen: CachedUsage, now: datetime) -> UsageStatus:
    """The rows decide; where Redis disagrees with them, it is corrected (B6.5)."""
    stands = windows.load_usage_status(user_id, now)
    known = (seen.daily, seen.weekly, seen.entitlement)
    if known != (_build_amount(stands.daily), _build_amount(stands.weekly), stands.entitlement):
        redis_counters.correct_copies(windows.build_copies(stands))
    return stands


def _build_amount(meter: WindowUsage) -> WindowAmount:
    return WindowAmount(used_microdollars=meter.used_microdollars, version=meter.version)


def _build_refusal(
    stands: UsageStatus, meter: WindowUsage | None, now: datetime, reason: LimitReason = "used"
) -> LimitReached | None:
    if meter is None:
        return None
    return LimitReached(
        window=WINDOW_NAMES[meter.window.kind],
        resets_at=meter.window.resets_at,
        reason=reason,
        reset_cost_cents=policies.get_rules().policy.reset_cost_cents,
        can_reset=not usage_status.find_reset_refusal(stands, now),
    )


# --- holds ----------------------------------------------------------------------------------------------


def _try_hold(user_id: int, hold: str, rules: policies.LimitRules, now: datetime) -> LimitReached | None:
    """Copies that are missing or wrong are put right and asked again; in the end nobody is kept out by them."""
    limits = {tier: rules.get_limits_microdollars(plans.Entitlement(tier=tier)) for tier in plans.TIERS}
    for _ in range(MAX_HOLD_ATTEMPTS):
        held = redis_counters.place_hold(
            user_id,
            hold,
            amount_microdollars=rules.policy.turn_hold_microdollars,
            day=plans.get_day_window(now),
            week=plans.get_week_window(now),
            limits_by_tier=limits,
        )
        if held.answer == "stored":
            return None
        if held.answer == "missing":
            stands = windows.rebuild_copies(user_id, now)
            full = stands.exhausted_window
        else:
            stands = _confirm_usage(user_id, held.seen, now)
            full = _find_full_window(stands, held.held_microdollars)
        if full is not None:
            return _build_refusal(stands, full, now, "used" if full.is_exhausted else "held")
    return None


def _find_full_window(stands: UsageStatus, held_microdollars: int) -> WindowUsage | None:
    """Use by the rows, holds by Redis; a window that is used up before one that is only held, the weekly one first."""
    if stands.exhausted_window is not None:
        return stands.exhausted_window
    return next(
        (
            meter
            for meter in (stands.weekly, stands.daily)
            if plans.is_exhausted(meter.used_microdollars + held_microdollars, meter.limit_microdollars)
        ),
        None,
    )
