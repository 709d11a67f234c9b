"""What models have taught us about themselves, remembered by this process for a day (A4.4)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from copilot.providers.base import Effort, Entry

REMEMBERED_SECONDS = 24 * 3600.0  # vendors widen what a model takes; a refusal is asked for again daily


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a model takes less of than its entry says; without fields nothing is known."""

    effort: Effort | None = None  # the highest level it accepted
    thinks: bool = True
    sees: bool = True


@dataclass(frozen=True, kw_only=True)
class _Remembered:
    entry: Entry
    lesson: Lesson
    until: float


class Lessons:
    """By entry as it stood when the lesson was learnt: an edited entry is an unknown one."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._remembered: dict[str, _Remembered] = {}  # by the entry's name

    def learn(self, entry: Entry, lesson: Lesson) -> None:
        until = self._now() + REMEMBERED_SECONDS
        self._remembered[entry.name] = _Remembered(entry=_keyless(entry), lesson=lesson, until=until)

    def recall(self, entry: Entry) -> Lesson:
        known = self._remembered.get(entry.name)
        if known is None:
            return Lesson()
        if known.entry != _keyless(entry) or self._now() >= known.until:
            del self._remembered[entry.name]
            return Lesson()
        return known.lesson


def _keyless(entry: Entry) -> Entry:
    """A new key is the same model; and no key outlives its turn here."""
    return replace(entry, credential="")


LESSONS = Lessons()
