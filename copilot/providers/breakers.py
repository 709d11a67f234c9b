"""Know the models with an open circuit breaker, so that turns skip them for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from copilot.providers.base import CatalogueEntry, FailureCode
from copilot.providers.learned_limits import fingerprint_entry


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
