"""What models have taught us about themselves: remembered for a day, by every process alike (A4.4)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b

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
    fingerprint: str
    lesson: Lesson
    until: float


class Lessons:
    """By entry as it stood when the lesson was learnt: an edited entry is an unknown one."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._remembered: dict[str, _Remembered] = {}  # by the entry's name

    def learn(self, entry: Entry, lesson: Lesson) -> None:
        self.take(entry.name, fingerprint(entry), lesson, seconds=REMEMBERED_SECONDS)

    def take(self, name: str, fingerprint: str, lesson: Lesson, *, seconds: float) -> None:
        """What was learnt elsewhere, and holds for so long."""
        until = self._now() + seconds
        self._remembered[name] = _Remembered(fingerprint=fingerprint, lesson=lesson, until=until)

    def recall(self, entry: Entry) -> Lesson:
        known = self._remembered.get(entry.name)
        if known is None:
            return Lesson()
        if known.fingerprint != fingerprint(entry) or self._now() >= known.until:
            self._remembered.pop(entry.name, None)
            return Lesson()
        return known.lesson


def fingerprint(entry: Entry) -> str:
    """Of the entry without its key: a new key is the same model, and no key is kept here."""
    return blake2b(repr(replace(entry, credential="")).encode(), digest_size=16).hexdigest()


LESSONS = Lessons()
