"""Which models keep failing, for everybody: turns pass over them for a while instead of finding out themselves (A7.7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from copilot.providers.base import Entry, FailureCode
from copilot.providers.lessons import fingerprint


@dataclass(frozen=True, kw_only=True)
class Trip:
    """Why a model is passed over, and for how much longer."""

    code: FailureCode
    seconds: float


class Breakers:
    """What this process knows of them; an edited entry is another one, and is asked at once."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._open: dict[str, tuple[FailureCode, float]] = {}  # by fingerprint: why, and until when

    def tripped(self, entry: Entry) -> FailureCode | None:
        """Why `entry` is passed over now."""
        if not self._open:
            return None
        code, until = self._open.get(fingerprint(entry), (None, 0.0))
        return code if self._now() < until else None

    def trip(self, name: str, trip: Trip) -> None:
        self._open[name] = (trip.code, self._now() + trip.seconds)

    def replace(self, trips: Mapping[str, Trip]) -> None:
        """All there are, as somebody who asked knows them."""
        now = self._now()
        self._open = {name: (trip.code, now + trip.seconds) for name, trip in trips.items()}


BREAKERS = Breakers()
