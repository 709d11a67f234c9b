"""Reads of billing: policy and prices (kept a moment), a user's standing, plan and public usage; never writes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Generic, TypeVar

from django.db import Error as AnyDatabaseError
from django.db import connection
from django.utils import timezone

from billing import plans, pricing
from billing.models import ONLY_POLICY, Account, LimitPolicy, ModelPrice, TierPolicy

logger = logging.getLogger(__name__)
T = TypeVar("T")

KEPT_SECONDS = 3.0  # staff changes must act everywhere within 5 (B6.3)
COMPLAIN_EVERY_SECONDS = 60.0


class Kept(Generic[T]):
    """A value read at most every few seconds per process. Two threads may both read it: harmless."""

    def __init__(self, load: Callable[[], T], clock: Callable[[], float] = time.monotonic) -> None:
        self._load = load
        self._clock = clock
        self._value: tuple[T, float] | None = None

    def get(self) -> T:
        kept = self._value
        if kept is None or self._clock() >= kept[1]:
            kept = self._load(), self._clock() + KEPT_SECONDS
            self._value = kept
        return kept[0]

    def forget(self) -> None:
        self._value = None


class Seldom:
    """Says yes at most once in so many seconds, so that one lasting fault does not fill the log."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = float("-inf")

    def due(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._seconds
        return True


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The policy and the terms of every tier, as they stand now."""

    policy: plans.Policy
    terms: Mapping[str, plans.Terms]

    def of(self, tier: str) -> plans.Terms:
        return self.terms.get(tier) or plans.default_terms(tier)


@dataclass(frozen=True, kw_only=True)
class Meter:
    """One window of one user: what is used, of what limit. For billing and staff only (B1.5)."""

    window: plans.Window
    used_microdollars: int
    limit_microdollars: int

    @property
    def exhausted(self) -> bool:
        return plans.is_exhausted(self.used_microdollars, self.limit_microdollars)


@dataclass(frozen=True, kw_only=True)
class Standing:
    tier: str
    daily: Meter
    weekly: Meter


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a user's tier allows; an empty tuple allows everything, a ceiling of 0 is none (B6.10)."""

    tier: str
    model_tiers: tuple[str, ...]
    modes: tuple[str, ...]
    turn_ceiling_microdollars: int
    limit_binds_running_turns: bool


@dataclass(frozen=True, kw_only=True)
class WindowView:
    percent_used: float
    resets_at: datetime


@dataclass(frozen=True, kw_only=True)
class UsageView:
    """What anyone may see of his own use (B16.2): percentages and times, no amounts. None = no limit."""

    daily: WindowView | None
    weekly: WindowView | None
    tier: str
    reset_cost_cents: int
    resets_left_today: int


def rules() -> Rules:
    return _rules.get()


def prices() -> tuple[pricing.Price, ...]:
    return _prices.get()


def forget_policy() -> None:
    """After a staff change: this process reads policy, tiers and prices anew."""
    _rules.forget()
    _prices.forget()


# The account's tier and overrides ride along with its two window rows, so one round trip decides
# and an override acts at once: one look-up by the unique user, two by the unique window.
_STANDING = """
    SELECT account.tier,
           account.daily_limit_override_microdollars,
           account.weekly_limit_override_microdollars,
           coalesce(day.used_microdollars, 0),
           coalesce(week.used_microdollars, 0)
    FROM billing_account AS account
    LEFT JOIN billing_usagewindow AS day
        ON day.account_id = account.id AND day.kind = 'DAY' AND day.starts_on = %s
    LEFT JOIN billing_usagewindow AS week
        ON week.account_id = account.id AND week.kind = 'WEEK' AND week.starts_on = %s
    WHERE account.user_id = %s
"""
_NO_ACCOUNT = ("FREE", None, None, 0, 0)  # rows appear with the first use (B2.5)


def standing(user_id: int, now: datetime) -> Standing:
    """Use and effective limits of both windows, in one statement once policy and tiers are known."""
    day, week = plans.day_of(now), plans.week_of(now)
    known = rules()
    with connection.cursor() as cursor:
        cursor.execute(_STANDING, [day.starts_on, week.starts_on, user_id])
        tier, daily_override, weekly_override, day_used, week_used = cursor.fetchone() or _NO_ACCOUNT
    multiplier = known.of(tier).multiplier
    daily_limit_microdollars = plans.effective_limit_microdollars(
        known.policy.daily_base_microdollars, multiplier, daily_override
    )
    weekly_limit_microdollars = plans.effective_limit_microdollars(
        known.policy.weekly_base_microdollars, multiplier, weekly_override
    )
    return Standing(
        tier=tier,
        daily=Meter(window=day, used_microdollars=day_used, limit_microdollars=daily_limit_microdollars),
        weekly=Meter(window=week, used_microdollars=week_used, limit_microdollars=weekly_limit_microdollars),
    )


def usage(user_id: int) -> UsageView:
    """Read from the durable rows, so it is right whatever Redis does (B8.1)."""
    now_standing = standing(user_id, timezone.now())
    return UsageView(
        daily=_view(now_standing.daily),
        weekly=_view(now_standing.weekly),
        tier=now_standing.tier,
        reset_cost_cents=0,  # no reset can be bought before there are credits
        resets_left_today=0,
    )


def restricts_models() -> bool:
    """Whether any plan leaves something out: if none does, nobody's plan needs to be looked up."""
    return any(terms.model_tiers or terms.modes for terms in rules().terms.values())


def plan(user_id: int) -> Plan:
    tier = Account.objects.filter(user_id=user_id).values_list("tier", flat=True).first() or "FREE"
    known = rules()
    terms = known.of(tier)
    return Plan(
        tier=tier,
        model_tiers=terms.model_tiers,
        modes=terms.modes,
        turn_ceiling_microdollars=known.policy.turn_ceiling_microdollars,
        limit_binds_running_turns=known.policy.limit_binds_running_turns,
    )


def _view(meter: Meter) -> WindowView | None:
    percent_used = plans.percent_used(meter.used_microdollars, meter.limit_microdollars)
    if percent_used is None:
        return None
    return WindowView(percent_used=percent_used, resets_at=meter.window.resets_at)


def _load_rules() -> Rules:
    """An unreadable policy is the default one, never no limit at all (B6.3)."""
    try:
        row = LimitPolicy.objects.get(pk=ONLY_POLICY)
        terms = {
            tier.tier: plans.Terms(
                multiplier=tier.multiplier, model_tiers=tuple(tier.model_tiers), modes=tuple(tier.modes)
            )
            for tier in TierPolicy.objects.all()
        }
    except (AnyDatabaseError, LimitPolicy.DoesNotExist) as problem:
        if _complaint.due():
            logger.error("The limit policy cannot be read, its defaults apply: %s", type(problem).__name__)
        return Rules(policy=plans.Policy(), terms={})
    policy = plans.Policy(**{field.name: getattr(row, field.name) for field in fields(plans.Policy)})
    return Rules(policy=policy, terms=terms)


def _load_prices() -> tuple[pricing.Price, ...]:
    return tuple(
        pricing.Price(
            id=row.pk,
            provider=row.provider,
            model=row.model,
            flat_rate=row.kind == ModelPrice.Kind.FLAT_RATE,
            effective_from=row.effective_from,
            input_per_million_microdollars=row.input_per_million_microdollars,
            output_per_million_microdollars=row.output_per_million_microdollars,
            cache_read_per_million_microdollars=row.cache_read_per_million_microdollars,
            cache_write_5m_per_million_microdollars=row.cache_write_5m_per_million_microdollars,
            cache_write_1h_per_million_microdollars=row.cache_write_1h_per_million_microdollars,
        )
        for row in ModelPrice.objects.all()
    )


_complaint = Seldom(COMPLAIN_EVERY_SECONDS)
_rules = Kept(_load_rules)
_prices = Kept(_load_prices)
