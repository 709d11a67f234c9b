"""Remember for a day what models turned out not to accept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b

from copilot.providers.base import CatalogueEntry, ReasoningEffort

LEARNED_LIMITS_SECONDS = 24 * 3600.0  # vendors extend their models, so a refusal is tried again daily


@dataclass(frozen=True, kw_only=True)
class LearnedLimits:
    """Limits of a model beyond what its entry says; the defaults mean that nothing is known."""

    effort: ReasoningEffort | None = None  # the highest level it accepted
    thinks: bool = True
    sees: bool = True


@dataclass(frozen=True, kw_only=True)
class _RememberedLimits:
    fingerprint: str
    lesson: LearnedLimits
    until: float


class LearnedLimitsCache:
    """Remember limits by entry. An edited entry counts as unknown."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._remembered: dict[str, _RememberedLimits] = {}  # by the entry's name

    def learn(self, entry: CatalogueEntry, lesson: LearnedLimits) -> None:
        self.store(entry.name, fingerprint_entry(entry), lesson, seconds=LEARNED_LIMITS_SECONDS)

    def store(self, name: str, fingerprint: str, lesson: LearnedLimits, *, seconds: float) -> None:
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
    """Hash the entry without its credential: a new key does not make another model."""
    return blake2b(repr(replace(entry, credential="")).encode(), digest_size=16).hexdigest()


LEARNED_LIMITS = LearnedLimitsCache()
