"""Check usage limits and hold money for turns: fast in Redis, confirmed in Postgres before anybody is refused."""

from __future__ import annotations

from datetime import datetime

import structlog
from django.db import Error as AnyDatabaseError
from django.utils import timezone

from billing import metrics, plans, policies, redis_counters
from billing.errors import CountersUnavailable, LimitReached, LimitReason, WindowName
from billing.redis_counters import CachedUsage, WindowAmount
from billing.selectors import usage_status
from billing.selectors.usage_status import UsageStatus, WindowUsage
from billing.usage import windows

log = structlog.get_logger(__name__)

MAX_HOLD_ATTEMPTS = 3  # counters may vanish between attempts
WINDOW_NAMES: dict[plans.WindowKind, WindowName] = {"DAY": "daily", "WEEK": "weekly"}


def check_limits(user_id: int) -> None:
    """Raise LimitReached if a window is used up. If usage cannot be read, nobody is refused."""
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
    """Check the limits and hold money for the turn named by `hold`, in one round trip.

    Raises LimitReached with reason `held` if only the holds of other turns are in the way. `checked` says that
    `check_limits` has just passed, so that nothing is left to do when holds are off.
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
    """Extend a running turn's hold. Workers call this at most every five minutes."""
    rules = policies.get_rules()
    amount_microdollars = rules.policy.turn_hold_microdollars
    if amount_microdollars and not rules.is_unlimited(user_id):
        try:
            redis_counters.renew_hold(user_id, hold, amount_microdollars)
        except CountersUnavailable:
            log.warning("hold_renew_failed", user_id=user_id, hold_id=hold)


def release_turn_hold(user_id: int, hold: str) -> None:
    """Release a turn's hold after its calls are recorded. A hold that cannot be released expires on its own."""
    rules = policies.get_rules()
    if rules.policy.turn_hold_microdollars and not rules.is_unlimited(user_id):
        try:
            redis_counters.release_hold(user_id, hold)
        except CountersUnavailable:
            log.warning("hold_release_failed", user_id=user_id, hold_id=hold)


def _record_degraded(problem: Exception) -> None:
    log.warning("limit_check_degraded", error=type(problem).__name__)
    metrics.limit_checks.labels("degraded").inc()


# --- Usage ---


def _find_refusal(user_id: int, now: datetime) -> LimitReached | None:
    cached = redis_counters.read_cached_usage(user_id, plans.get_day_window(now), plans.get_week_window(now))
    if cached.daily is None or cached.weekly is None or cached.entitlement is None:
        status = windows.rebuild_copies(user_id, now)  # already read from Postgres, nothing to confirm
    elif _has_room(cached.daily, cached.weekly, cached.entitlement):
        return None
    else:
        status = _confirm_usage(user_id, cached, now)
    return _build_refusal(status, status.exhausted_window, now)


def _has_room(daily: WindowAmount, weekly: WindowAmount, entitlement: plans.Entitlement) -> bool:
    limits = policies.get_rules().get_limits_microdollars(entitlement)
    return not any(
        plans.is_exhausted(amount.used_microdollars, limit)
        for amount, limit in zip((daily, weekly), limits, strict=True)
    )


def _confirm_usage(user_id: int, cached: CachedUsage, now: datetime) -> UsageStatus:
    """Read the rows, which decide, and correct Redis where it disagrees."""
    status = windows.load_usage_status(user_id, now)
    cached_values = (cached.daily, cached.weekly, cached.entitlement)
    if cached_values != (_build_amount(status.daily), _build_amount(status.weekly), status.entitlement):
        redis_counters.correct_copies(windows.build_copies(status))
    return status


def _build_amount(meter: WindowUsage) -> WindowAmount:
    return WindowAmount(used_microdollars=meter.used_microdollars, version=meter.version)


def _build_refusal(
    status: UsageStatus, meter: WindowUsage | None, now: datetime, reason: LimitReason = "used"
) -> LimitReached | None:
    if meter is None:
        return None
    return LimitReached(
        window=WINDOW_NAMES[meter.window.kind],
        resets_at=meter.window.resets_at,
        reason=reason,
        reset_cost_cents=policies.get_rules().policy.reset_cost_cents,
        can_reset=not usage_status.find_reset_refusal(status, now),
    )


# --- Holds ---


def _try_hold(user_id: int, hold: str, rules: policies.LimitRules, now: datetime) -> LimitReached | None:
    """Rebuild or correct bad copies and try again. If the copies never get right, let the turn in."""
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
            status = windows.rebuild_copies(user_id, now)
            full = status.exhausted_window
        else:
            status = _confirm_usage(user_id, held.seen, now)
            full = _find_full_window(status, held.held_microdollars)
        if full is not None:
            return _build_refusal(status, full, now, "used" if full.is_exhausted else "held")
    return None


def _find_full_window(status: UsageStatus, held_microdollars: int) -> WindowUsage | None:
    """Combine usage from the rows with holds from Redis. An exhausted window comes before a held one, weekly first."""
    if status.exhausted_window is not None:
        return status.exhausted_window
    return next(
        (
            meter
            for meter in (status.weekly, status.daily)
            if plans.is_exhausted(meter.used_microdollars + held_microdollars, meter.limit_microdollars)
        ),
        None,
    )
