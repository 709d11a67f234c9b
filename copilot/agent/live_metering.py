"""What a running turn takes, while it takes it: tokens per second and how full the window is (A19.7)."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from copilot.agent.asking import Asker
from copilot.agent.metering import estimate
from copilot.events import UsageMetered

WINDOW_SECONDS = 5.0  # of deltas that make the rate
QUIET_SECONDS = 1.0  # between two figures while nothing arrives


class LiveMeter:
    """Looked at by the engine's timer: a delta itself costs nothing more than its counter."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()  # when, and characters generated until then
        self._told_at = float("-inf")

    def look(
        self, asker: Asker, now: float, *, limit_used_percent: float | None = None
    ) -> UsageMetered | None:
        """The figures now; None when they were told a moment ago and nothing has come since."""
        characters = asker.characters
        grew = not self._samples or characters > self._samples[-1][1]
        self._samples.append((now, characters))
        while self._samples[0][0] < now - WINDOW_SECONDS:
            self._samples.popleft()
        if not grew and now - self._told_at < QUIET_SECONDS:
            return None
        self._told_at = now
        return UsageMetered(
            tokens_per_second=self._rate(),
            context_used_percent=asker.context_used_percent,
            tokens=replace(asker.tokens, output=asker.tokens.output + estimate(asker.characters_under_way)),
            estimated=True,
            limit_used_percent=limit_used_percent,
        )

    def _rate(self) -> float | None:
        (began, before), (now, after) = self._samples[0], self._samples[-1]
        return round(estimate(after - before) / (now - began), 1) if after > before else None
