"""How often a message may be changed: the platform's interval, wider for a while after it complained (L19). Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

WIDER = 2.0
WIDEST_SECONDS = 60.0
NARROWS_AFTER_SECONDS = 60.0


@dataclass
class Pace:
    least_seconds: float
    clock: Callable[[], float]
    _interval: float = 0.0
    _last: float = float("-inf")
    _refused: float = float("-inf")
    _not_before: float = float("-inf")

    def seconds_left(self) -> float:
        """Until the next change may go out; 0 when it may now."""
        now = self.clock()
        if now - self._refused >= NARROWS_AFTER_SECONDS:
            self._interval = self.least_seconds
        return max(self._last + max(self._interval, self.least_seconds), self._not_before) - now

    def went_out(self) -> None:
        self._last = self.clock()

    def was_refused(self, retry_after_seconds: float) -> None:
        """Wait what the platform says, and be slower from now on."""
        now = self.clock()
        self._refused = now
        self._not_before = now + retry_after_seconds
        self._interval = min(max(self._interval, self.least_seconds) * WIDER, WIDEST_SECONDS)
