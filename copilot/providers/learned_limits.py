"""What models have taught us about themselves: remembered for a day, by every process alike (A4.4)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b

from copilot.providers.base import CatalogueEntry, ReasoningEffort

LEARNED_LIMITS_SECONDS = 24 * 3600.0  # vendors widen what a model takes; a refusal is asked for again daily


@dataclass(frozen=True, kw_only=True)
class LearnedLimits:
    """What a model takes less of than its entry says; without fields nothing is known."""

    effort: ReasoningEffort | None = None  # the highest level it accepted
    thinks: bool = True
    sees: bool = True


@dataclass(frozen=True, kw_only=True)
class _RememberedLimits:
    fingerprint: str
    lesson: LearnedLimits
    until: float


class LearnedLimitsCache:
    """By entry as it stood when the lesson was learnt: an edited entry is an unknown one."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._remembered: dict[str, _RememberedLimits] = {}  # by the entry's name

    def learn(self, entry: CatalogueEntry, lesson: LearnedLimits) -> None:
        self.store(entry.name, fingerprint_entry(entry), lesson, seconds=LEARNED_LIMITS_SECONDS)

    def store(self, name: str, fingerprint: str, lesson: LearnedLimits, *, seconds: float) -> None:
        """What was learnt elsewhere, and holds for so long."""
        until = self._now() + seconds
        self._remembered[name] = _RememberedLimits(fingerprint=fingerprint, lesson=lesson, until=until)

    def recall(self, entry: CatalogueEntry) -> LearnedLimits:
        known = self._remembered.get(entry.name)
        if known is None:
            return LearnedLimits()
        if known.fingerprint != fingerprint_entry(entry) or self._now() >= known.until:
            self._remembered.pop(entry.name, None)
            return LearnedLimits()
        return known.lesson


def fingerprint_entry(entry: CatalogueEntry) -> str:
    """Of the entry without its key: a new key is the same model, and no key is kept here."""
    return blake2b(repr(replace(entry, credential="")).encode(), digest_size=16).hexdigest()


LEARNED_LIMITS = LearnedLimitsCache()
