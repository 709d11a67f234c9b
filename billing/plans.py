"""Tiers, policy defaults, limit windows and effective limits, as pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal

WindowKind = Literal["DAY", "WEEK"]

TIERS = ("FREE", "PRO", "BUSINESS", "ENTERPRISE")  # lowest first
DEFAULT_MULTIPLIERS = {"FREE": 1, "PRO": 5, "BUSINESS": 20, "ENTERPRISE": 60}
UNLIMITED = 0
DEFAULT_TURNS_AT_ONCE = 10  # per user; 0 in a tier means no cap
REQUESTABLE_TIERS = ("FREE", "PRO", "BUSINESS")  # users can choose these; only staff grant the others


@dataclass(frozen=True, kw_only=True)
class PolicyValues:
    """All installation-wide settings that staff can change, with their defaults."""

    daily_base_microdollars: int = 1_000_000
    weekly_base_microdollars: int = 5_000_000
    reset_cost_cents: int = 500
    max_paid_resets_per_day: int = 5
    turn_hold_microdollars: int = 50_000
    turn_ceiling_microdollars: int = 0
    limit_binds_running_turns: bool = True
    unknown_cost: str = "DEFAULT"
    unknown_cost_microdollars: int = 10_000
    max_call_cost_microdollars: int = 100_000_000
    payments_enabled: bool = True
    grace_days: int = 7
    top_up_min_cents: int = 500
    top_up_max_cents: int = 50_000
    auto_top_up_max_per_day: int = 3

    @property
    def counted_when_unknown_microdollars(self) -> int:
        return 0 if self.unknown_cost == "ZERO" else self.unknown_cost_microdollars


@dataclass(frozen=True, kw_only=True)
class TierTerms:
    """The terms of one tier. An empty tuple allows everything."""

    multiplier: int
    turns_at_once: int = DEFAULT_TURNS_AT_ONCE
    model_tiers: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Entitlement:
    """The values that decide an account's limits besides the policy. Copies compare `version`."""

    tier: str = "FREE"
    daily_override_microdollars: int | None = None
    weekly_override_microdollars: int | None = None
    version: int = 0


@dataclass(frozen=True, kw_only=True)
class LimitWindow:
    """A UTC day or ISO week, with its start and the moment it resets."""

    kind: WindowKind
    starts_on: date
    resets_at: datetime

    @property
    def label(self) -> str:
        """Return `2026-12-31` for a day or `2026-W53` for a week of an ISO year."""
        if self.kind == "DAY":
            return self.starts_on.isoformat()
        year, week, _ = self.starts_on.isocalendar()
        return f"{year}-W{week:02d}"


def get_tier_rank(tier: str) -> int:
    return TIERS.index(tier)


def get_day_window(instant: datetime) -> LimitWindow:
    today = instant.astimezone(UTC).date()
    return LimitWindow(kind="DAY", starts_on=today, resets_at=_get_midnight(today + timedelta(days=1)))


def get_week_window(instant: datetime) -> LimitWindow:
    today = instant.astimezone(UTC).date()
    monday = today - timedelta(days=today.weekday())
    return LimitWindow(kind="WEEK", starts_on=monday, resets_at=_get_midnight(monday + timedelta(days=7)))


def get_default_terms(tier: str) -> TierTerms:
    return TierTerms(multiplier=DEFAULT_MULTIPLIERS[tier])


def compute_effective_limit_microdollars(
    base_microdollars: int, multiplier: int, override_microdollars: int | None
) -> int:
    """Return the override if there is one, else base times multiplier. 0 means unlimited in either."""
    if override_microdollars is not None:
        return override_microdollars
    return base_microdollars * multiplier


def compute_limits_microdollars(
    policy: PolicyValues, multiplier: int, entitlement: Entitlement
) -> tuple[int, int]:
    return (
        compute_effective_limit_microdollars(
            policy.daily_base_microdollars, multiplier, entitlement.daily_override_microdollars
        ),
        compute_effective_limit_microdollars(
            policy.weekly_base_microdollars, multiplier, entitlement.weekly_override_microdollars
        ),
    )


def is_exhausted(used_microdollars: int, limit_microdollars: int) -> bool:
    return limit_microdollars != UNLIMITED and used_microdollars >= limit_microdollars


def compute_percent_used(used_microdollars: int, limit_microdollars: int) -> float | None:
    """Return 100.0 exactly when exhausted, else round half up to 0.1 and stay below 100; None without a limit."""
    if limit_microdollars == UNLIMITED:
        return None
    if is_exhausted(used_microdollars, limit_microdollars):
        return 100.0
    tenths = (used_microdollars * 2000 + limit_microdollars) // (2 * limit_microdollars)
    return min(tenths, 999) / 10


def _get_midnight(day: date) -> datetime:
    return datetime.combine(day, time.min, tzinfo=UTC)
