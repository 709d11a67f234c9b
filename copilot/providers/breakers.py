"""Which models keep failing, for everybody: turns pass over them for a while instead of finding out themselves (A7.7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from copilot.providers.base import CatalogueEntry, FailureCode
from copilot.providers.learned_limits import fingerprint_entry


@dataclass(frozen=True, kw_only=True)
class BreakerTrip:
    """Why a model is passed over, and for how much longer."""

    code: FailureCode
    seconds: float


class ModelBreakers:
    """What this process knows of them; an edited entry is another one, and is asked at once."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._open: dict[str, tuple[FailureCode, float]] = {}  # by fingerprint: why, and until when

    def open_breaker_code(self, entry: CatalogueEntry) -> FailureCode | None:
        """Why `entry` is passed over now."""
        if not self._open:
            return None
        code, until = self._open.get(fingerprint_entry(entry), (None, 0.0))
        return code if self._now() < until else None

    def open_breaker(self, name: str, trip: BreakerTrip) -> None:
        self._open[name] = (trip.code, self._now() + trip.seconds)

    def replace_all(self, trips: Mapping[str, BreakerTrip]) -> None:
        """All there are, as somebody who asked knows them."""
        now = self._now()
        self._open = {name: (trip.code, now + trip.seconds) for name, trip in trips.items()}


BREAKERS = ModelBreakers()
