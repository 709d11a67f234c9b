"""Record what one client saw of one turn: times, lag, and whether every token arrived once and in order."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

now = time.monotonic_ns  # the same clock for all processes of a machine: the provider stamps tokens with it


def milliseconds(nanoseconds: float) -> float:
    return nanoseconds / 1e6


@dataclass(slots=True)
class Reading:
    """Times in monotonic nanoseconds; 0 means that it did not happen."""

    asked_at: int = field(default_factory=now)
    accepted_at: int = 0
    queued: bool = False  # behind a turn that was not released yet
    started_at: int = 0  # a worker reported it
    first_at: int = 0
    last_at: int = 0
    recovering_at: int = 0
    continued_at: int = 0  # the first token after a recovery
    ended_at: int = 0
    ending: str = ""
    problem: str = ""
    events: int = 0
    tokens: int = 0
    lost: int = 0
    doubled: int = 0
    misplaced: int = 0  # deltas whose offset is not the end of the text so far
    lags: list[int] = field(default_factory=list)
    length: int = 0
    _rest: str = ""

    def extend(self, delta: str, offset: int | None, at: int) -> None:
        """Record text; `offset` is its position, if the protocol sends it."""
        if offset is not None and offset != self.length:
            self.misplaced += 1
            self.length = offset
        self.length += len(delta)
        if not self.first_at:
            self.first_at = at
        if self.recovering_at and not self.continued_at:
            self.continued_at = at
        self.last_at = at
        words = (self._rest + delta).split(" ")
        self._rest = words.pop()
        for word in words:
            if word:
                self._see(word, at)

    def _see(self, word: str, at: int) -> None:
        index, _, stamp = word.partition(":")
        if not stamp or not index.isdecimal():
            return
        self.see(int(index), int(stamp), at)

    def see(self, index: int, stamp: int, at: int) -> None:
        self.tokens += 1
        self.lags.append(at - stamp)
        expected = self.tokens + self.lost - self.doubled - 1
        if index > expected:
            self.lost += index - expected
        elif index < expected:
            self.doubled += 1

    def end(self, ending: str, at: int, *, tokens: int | None = None) -> None:
        """Finish the reading; fewer than `tokens` tokens means that some were lost."""
        self.ending, self.ended_at = ending, at
        if tokens is not None:
            seen = self.tokens + self.lost - self.doubled
            self.lost += max(0, tokens - seen)

    @property
    def first_ms(self) -> float:
        return milliseconds(self.first_at - self.asked_at)

    @property
    def wrong(self) -> int:
        return self.lost + self.doubled + self.misplaced


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    place = share / 100 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def lags_ms(readings: Sequence[Reading]) -> list[float]:
    return [milliseconds(lag) for reading in readings for lag in reading.lags]


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return the reading for results.json."""
    ordered = sorted(values)
    if not ordered:
        return {}
    return {
        name: round(percentile(ordered, share), 3)
        for name, share in (("p50", 50), ("p95", 95), ("p99", 99), ("max", 100))
    }
