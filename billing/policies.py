"""What staff decide, kept a moment by each process: policy, tiers, overrides and prices (B6.3).

A process that is in use reads them anew on a thread of its own, so that no message waits for it; an idle one reads
nothing, and the first request after a rest reads them itself.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Generic, TypeVar

from django.conf import settings
from django.db import Error as AnyDatabaseError
from django.db import connection
from django.db.models import Q
from django.db.models.functions import Now

from billing import counters, plans, pricing
from billing.models import ONLY_POLICY, Account, LimitPolicy, ModelPrice, TierPolicy

logger = logging.getLogger(__name__)
T = TypeVar("T")

KEPT_SECONDS = 3.0  # staff changes must act everywhere within 5 (B6.3)
REFRESH_SECONDS = 2.0
IDLE_SECONDS = 60.0  # after which nobody asks, and nothing is read ahead
COMPLAIN_EVERY_SECONDS = 60.0
MOST_OVERRIDES = 10_000  # kept per process; in an installation with more, Redis is asked for all
RECENT_CHANGES = timedelta(minutes=2)
UNREADABLE = (AnyDatabaseError, LimitPolicy.DoesNotExist)
ENTITLEMENT = (
    "tier",
    "daily_limit_override_microdollars",
    "weekly_limit_override_microdollars",
    "entitlement_version",
)


class Kept(Generic[T]):
    """A value read at most every few seconds per process. Two threads may both read it: harmless."""

    def __init__(
        self,
        load: Callable[[], T],
        otherwise: Callable[[Exception, T | None], T] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._otherwise = otherwise  # given the last value that was read, if any
        self._clock = clock
        self._value: tuple[T, float] | None = None
        self._asked_at = float("-inf")

    def get(self) -> T:
        self._asked_at = self._clock()
        kept = self._value
        if kept is None or self._asked_at >= kept[1]:
            return self.read()
        return kept[0]

    def read(self) -> T:
        try:
            value = self._load()
        except UNREADABLE as problem:
            if self._otherwise is None:
                raise
            return self._otherwise(problem, self.last_known())  # not kept: who asks next looks again
        self._value = value, self._clock() + KEPT_SECONDS
        return value

    def last_known(self) -> T | None:
        """Without reading anything, however old it is: for those who must not wait."""
        return self._value[0] if self._value else None

    def forget(self) -> None:
        self._value = None

    def is_in_use(self) -> bool:
        return self._clock() - self._asked_at < IDLE_SECONDS


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
    """The policy, the terms of every tier, and who has limits of his own, as they stand now."""

    policy: plans.Policy
    terms: Mapping[str, plans.Terms]
    overrides: Mapping[int, plans.Entitlement] | None = None  # by user; None: too many to keep

    def of(self, tier: str) -> plans.Terms:
        return self.terms.get(tier) or plans.default_terms(tier)

    def limits_microdollars(self, entitlement: plans.Entitlement) -> tuple[int, int]:
        """Of a day and of a week."""
        return plans.limits_microdollars(self.policy, self.of(entitlement.tier).multiplier, entitlement)

    def is_unlimited(self, user_id: int) -> bool:
        """Whether it is known without asking anybody that neither limit binds: a tier multiplies, and 0 stays 0."""
        if self.overrides is None:
            return False
        entitlement = self.overrides.get(user_id) or plans.Entitlement()
        return not any(self.limits_microdollars(entitlement))


def rules() -> Rules:
    _keep_reading()
    return _rules.get()


def holds_money() -> bool:
    """Whether running turns hold money, as far as this process knows; asked where nothing may be read (B6.7)."""
    known = _rules.last_known()
    return known is not None and known.policy.turn_hold_microdollars > 0


def prices() -> tuple[pricing.Price, ...]:
    _keep_reading()
    return _prices.get()


def forget() -> None:
    """After a staff change: this process reads policy, tiers, overrides and prices anew."""
    _rules.forget()
    _prices.forget()


def entitlement_of(account: Account) -> plans.Entitlement:
    return plans.Entitlement(
        tier=account.tier,
        daily_override_microdollars=account.daily_limit_override_microdollars,
        weekly_override_microdollars=account.weekly_limit_override_microdollars,
        version=account.entitlement_version,
    )


def price_of(row: ModelPrice) -> pricing.Price:
    return pricing.Price(
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


def publish_changes() -> int:
    """Entitlements that changed of late, to those copies that still say otherwise; how many there were."""
    recent = Account.objects.filter(entitlement_changed_at__gt=Now() - RECENT_CHANGES)
    changed = list(recent.only("user_id", *ENTITLEMENT))
    for account in changed:
        copy = counters.entitlement_copy(account.user_id, entitlement_of(account))
        counters.publish_or_count([copy])
    return len(changed)


# --- reading --------------------------------------------------------------------------------------------


def _load_rules() -> Rules:
    row = LimitPolicy.objects.get(pk=ONLY_POLICY)
    terms = {
        tier.tier: plans.Terms(
            multiplier=tier.multiplier,
            turns_at_once=tier.turns_at_once,
            model_tiers=tuple(tier.model_tiers),
            modes=tuple(tier.modes),
        )
        for tier in TierPolicy.objects.all()
    }
    policy = plans.Policy(**{field.name: getattr(row, field.name) for field in fields(plans.Policy)})
    return Rules(policy=policy, terms=terms, overrides=_load_overrides())


def _rules_unread(problem: Exception, known: Rules | None) -> Rules:
    """An unreadable policy is the default one, never no limit at all (B6.3); while the database is away, the last that was read."""
    if _complaint.due():
        logger.error("The limit policy cannot be read: %s", type(problem).__name__)
    if known is None or isinstance(problem, LimitPolicy.DoesNotExist):
        return Rules(policy=plans.Policy(), terms={})
    return known


def _load_overrides() -> dict[int, plans.Entitlement] | None:
    own = Q(daily_limit_override_microdollars__isnull=False)
    own |= Q(weekly_limit_override_microdollars__isnull=False)
    found = list(Account.objects.filter(own).only("user_id", *ENTITLEMENT)[: MOST_OVERRIDES + 1])
    if len(found) > MOST_OVERRIDES:
        return None
    return {account.user_id: entitlement_of(account) for account in found}


def _load_prices() -> tuple[pricing.Price, ...]:
    return tuple(price_of(row) for row in ModelPrice.objects.all())


_complaint = Seldom(COMPLAIN_EVERY_SECONDS)
_rules = Kept(_load_rules, _rules_unread)
_prices = Kept(_load_prices)


# --- reading ahead --------------------------------------------------------------------------------------

_reader_of = 0  # the process that has a reader; a forked one starts its own
_starting = threading.Lock()


def _keep_reading() -> None:
    global _reader_of  # noqa: PLW0603 - one per process, like the process itself
    if _reader_of == os.getpid() or settings.ENVIRONMENT == "test":  # a test's rows are its own connection's
        return
    with _starting:
        if _reader_of == os.getpid():
            return
        _reader_of = os.getpid()
    threading.Thread(target=_read_for_ever, name="billing policy", daemon=True).start()


def _read_for_ever() -> None:
    while True:
        time.sleep(REFRESH_SECONDS)
        try:
            if _rules.is_in_use():
                _rules.read()
                publish_changes()
            if _prices.is_in_use():
                _prices.read()
        except AnyDatabaseError as problem:  # whoever asks next reads for himself, and fails as he may
            logger.warning("Policy could not be read ahead: %s", type(problem).__name__)
            connection.close()
