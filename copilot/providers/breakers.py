"""Know the models with an open circuit breaker, so that turns skip them for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import uuid4

import structlog

from config.core.redis import REDIS_OUTAGE_ERRORS, get_redis, get_script
from copilot.providers.base import CatalogueEntry, FailureCode
from copilot.providers.learned_limits import fingerprint_entry
from copilot.realtime import redis_keys

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class BreakerTrip:
    """The failure that opened a breaker, and how long it stays open."""

    code: FailureCode
    seconds: float


class ModelBreakers:
    """Hold the open breakers known to this process. An edited entry counts as another model."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._open: dict[str, tuple[FailureCode, float]] = {}  # by fingerprint: failure, and until when

    def open_breaker_code(self, entry: CatalogueEntry) -> FailureCode | None:
        if not self._open:
            return None
        code, until = self._open.get(fingerprint_entry(entry), (None, 0.0))
        return code if self._now() < until else None

    def open_breaker(self, name: str, trip: BreakerTrip) -> None:
        self._open[name] = (trip.code, self._now() + trip.seconds)

    def replace_all(self, trips: Mapping[str, BreakerTrip]) -> None:
        now = self._now()
        self._open = {name: (trip.code, now + trip.seconds) for name, trip in trips.items()}


BREAKERS = ModelBreakers()


def count_model_failure(model: str, code: str, *, failures: int, seconds: int) -> bool:
    try:
        opened = get_script("count_breaker_failure")(
            keys=[redis_keys.model_failures_key(model), redis_keys.OPEN_BREAKERS_KEY],
            args=[str(uuid4()), model, code, failures, seconds, seconds],
        )
    except REDIS_OUTAGE_ERRORS:
        log.warning("model_failure_not_counted", model=model, code=code)
        return False
    return bool(opened)


def list_open_breakers() -> dict[str, tuple[str, float]]:
    try:
        found: dict[bytes, bytes] = get_redis().hgetall(redis_keys.OPEN_BREAKERS_KEY)  # type: ignore[assignment]
        if not found:
            return {}
        seconds, microseconds = get_redis().time()
    except REDIS_OUTAGE_ERRORS:
        return {}
    now = seconds + microseconds / 1_000_000
    trips = {name.decode(): value.decode().partition(" ") for name, value in found.items()}
    left = {name: (code, float(until) - now) for name, (until, _, code) in trips.items()}
    return {name: (code, seconds) for name, (code, seconds) in left.items() if seconds > 0}
