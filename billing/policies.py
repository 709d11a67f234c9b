"""Cache what staff decide (policy, tiers, limit overrides and prices) for a few seconds per process.

A process in use refreshes the cache on a background thread, so that no message waits for it. An idle process reads
nothing, and its next request loads the values itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Generic, TypeVar

import structlog
from django.conf import settings
from django.db import Error as AnyDatabaseError
from django.db import connection
from django.db.models import Q
from django.db.models.functions import Now

from billing import plans, pricing, redis_counters
from billing.models import POLICY_ID, Account, LimitPolicy, ModelPrice, TierPolicy

log = structlog.get_logger(__name__)
T = TypeVar("T")

CACHE_SECONDS = 3.0  # staff changes must take effect everywhere within 5
REFRESH_SECONDS = 2.0
IDLE_SECONDS = 60.0  # without use for this long, the background refresh stops
LOG_INTERVAL_SECONDS = 60.0
MAX_CACHED_OVERRIDES = 10_000  # per process; with more, every check asks Redis
RECENT_CHANGE_PERIOD = timedelta(minutes=2)
READ_ERRORS = (AnyDatabaseError, LimitPolicy.DoesNotExist)
ENTITLEMENT_FIELDS = (
    "tier",
    "daily_limit_override_microdollars",
    "weekly_limit_override_microdollars",
    "entitlement_version",
)


class CachedValue(Generic[T]):
    """A value loaded at most every few seconds per process. Two threads may load it at once, which is harmless."""

    def __init__(
        self,
        load: Callable[[], T],
        fall_back: Callable[[Exception, T | None], T] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._fall_back = fall_back  # called with the last loaded value, if any
        self._clock = clock
        self._value: tuple[T, float] | None = None
        self._used_at = float("-inf")

    def get(self) -> T:
        self._used_at = self._clock()
        kept = self._value
        if kept is None or self._used_at >= kept[1]:
            return self.refresh()
        return kept[0]

    def refresh(self) -> T:
        try:
            value = self._load()
        except READ_ERRORS as problem:
            if self._fall_back is None:
                raise
            return self._fall_back(
                problem, self.get_last_known()
            )  # not cached, so that the next call tries again
        self._value = value, self._clock() + CACHE_SECONDS
        return value

    def get_last_known(self) -> T | None:
        """Return the last value without loading, however old, for callers that must not wait."""
        return self._value[0] if self._value else None

    def clear(self) -> None:
        self._value = None

    def is_in_use(self) -> bool:
        return self._clock() - self._used_at < IDLE_SECONDS


class LogThrottle:
    """Allow at most one log line per interval, so that a lasting fault does not fill the log."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = float("-inf")

    def is_due(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._seconds
        return True


@dataclass(frozen=True, kw_only=True)
class LimitRules:
    """The current policy, the terms of every tier, and the users with limit overrides."""

    policy: plans.PolicyValues
    terms: Mapping[str, plans.TierTerms]
    overrides: Mapping[int, plans.Entitlement] | None = (
        None  # by user id; None if there are too many to cache
    )

    def get_terms(self, tier: str) -> plans.TierTerms:
        return self.terms.get(tier) or plans.get_default_terms(tier)

    def get_limits_microdollars(self, entitlement: plans.Entitlement) -> tuple[int, int]:
        return plans.compute_limits_microdollars(
            self.policy, self.get_terms(entitlement.tier).multiplier, entitlement
        )

    def is_unlimited(self, user_id: int) -> bool:
        """Return True if the cached rules alone prove that neither limit binds (0 stays 0 times any multiplier)."""
        if self.overrides is None:
            return False
        entitlement = self.overrides.get(user_id) or plans.Entitlement()
        return not any(self.get_limits_microdollars(entitlement))


def get_rules() -> LimitRules:
    _ensure_reader_thread()
    return _cached_rules.get()


def are_holds_enabled() -> bool:
    """Answer from the cache alone, for callers that must not read anything."""
    known = _cached_rules.get_last_known()
    return known is not None and known.policy.turn_hold_microdollars > 0


def get_prices() -> tuple[pricing.CataloguePrice, ...]:
    _ensure_reader_thread()
    return _cached_prices.get()


def clear_policy_cache() -> None:
    _cached_rules.clear()
    _cached_prices.clear()


def build_entitlement(account: Account) -> plans.Entitlement:
    return plans.Entitlement(
        tier=account.tier,
        daily_override_microdollars=account.daily_limit_override_microdollars,
        weekly_override_microdollars=account.weekly_limit_override_microdollars,
        version=account.entitlement_version,
    )


def build_price(row: ModelPrice) -> pricing.CataloguePrice:
    return pricing.CataloguePrice(
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


def publish_entitlement_changes() -> int:
    """Publish recently changed entitlements to Redis and return how many there were."""
    recent = Account.objects.filter(entitlement_changed_at__gt=Now() - RECENT_CHANGE_PERIOD)
    changed = list(recent.only("user_id", *ENTITLEMENT_FIELDS))
    for account in changed:
        copy = redis_counters.build_entitlement_copy(account.user_id, build_entitlement(account))
        redis_counters.try_publish_copies([copy])
    return len(changed)


# --- Loading ---


def _load_rules() -> LimitRules:
    row = LimitPolicy.objects.get(pk=POLICY_ID)
    terms = {
        tier.tier: plans.TierTerms(
            multiplier=tier.multiplier,
            turns_at_once=tier.turns_at_once,
            model_tiers=tuple(tier.model_tiers),
            modes=tuple(tier.modes),
        )
        for tier in TierPolicy.objects.all()
    }
    policy = plans.PolicyValues(
        **{field.name: getattr(row, field.name) for field in fields(plans.PolicyValues)}
    )
    return LimitRules(policy=policy, terms=terms, overrides=_load_overrides())


def _fall_back_to_known_rules(problem: Exception, known: LimitRules | None) -> LimitRules:
    """Use the last loaded rules while the database is away, or the default policy; never no limit at all."""
    if _read_failure_throttle.is_due():
        log.error("limit_policy_unreadable", error=type(problem).__name__)
    if known is None or isinstance(problem, LimitPolicy.DoesNotExist):
        return LimitRules(policy=plans.PolicyValues(), terms={})
    return known


def _load_overrides() -> dict[int, plans.Entitlement] | None:
    has_override = Q(daily_limit_override_microdollars__isnull=False)
    has_override |= Q(weekly_limit_override_microdollars__isnull=False)
    found = list(
        Account.objects.filter(has_override).only("user_id", *ENTITLEMENT_FIELDS)[: MAX_CACHED_OVERRIDES + 1]
    )
    if len(found) > MAX_CACHED_OVERRIDES:
        return None
    return {account.user_id: build_entitlement(account) for account in found}


def _load_prices() -> tuple[pricing.CataloguePrice, ...]:
    return tuple(build_price(row) for row in ModelPrice.objects.all())


_read_failure_throttle = LogThrottle(LOG_INTERVAL_SECONDS)
_cached_rules = CachedValue(_load_rules, _fall_back_to_known_rules)
_cached_prices = CachedValue(_load_prices)


# --- Background refresh ---

_reader_pid = 0  # the process that started the thread; a fork starts its own
_reader_lock = threading.Lock()


def _ensure_reader_thread() -> None:
    global _reader_pid  # noqa: PLW0603 - one per process, like the process itself
    if (
        _reader_pid == os.getpid() or settings.ENVIRONMENT == "test"
    ):  # a test's rows are visible only to its own connection
        return
    with _reader_lock:
        if _reader_pid == os.getpid():
            return
        _reader_pid = os.getpid()
    threading.Thread(target=_run_reader, name="billing policy", daemon=True).start()


def _run_reader() -> None:
    while True:
        time.sleep(REFRESH_SECONDS)
        try:
            if _cached_rules.is_in_use():
                _cached_rules.refresh()
                publish_entitlement_changes()
            if _cached_prices.is_in_use():
                _cached_prices.refresh()
        except AnyDatabaseError as problem:  # the next request loads the values itself
            log.warning("policy_refresh_failed", error=type(problem).__name__)
            connection.close()
