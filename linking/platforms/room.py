"""How much a platform takes from us at a time: counts over sliding windows, asked before a call is made (L20)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from linking.platforms.base import Busy

PATIENCE_SECONDS = 3.0  # for a place that is nearly free; beyond that whoever asked decides
MANY_WINDOWS = 2_000


@dataclass(frozen=True, kw_only=True)
class Limit:
    """So many calls in any stretch of so many seconds; `kept` of them are for what must be said."""

    calls: int
    seconds: float
    kept: int = 0


class Room:
    """One bot account's windows, by what each counts. They guard; what the platform itself answers wins."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._taken: dict[str, deque[float]] = {}

    async def enter(self, wanted: Sequence[tuple[str, Limit]], *, passing: bool = False) -> None:
        """Take a place in every window, after a short wait if need be; raises `Busy`. `passing`: it may as well be left out."""
        deadline = self._clock() + (0.0 if passing else PATIENCE_SECONDS)
        while (wait := self.seconds_until(wanted, passing=passing)) > 0:
            if self._clock() + wait > deadline:
                raise Busy(wait)
            await self._sleep(wait)
        now = self._clock()
        for name, _ in wanted:
            self._taken.setdefault(name, deque()).append(now)
        if len(self._taken) > MANY_WINDOWS:
            self._forget(max(limit.seconds for _, limit in wanted))

    def seconds_until(self, wanted: Sequence[tuple[str, Limit]], *, passing: bool) -> float:
        return max(self._wait(name, limit, passing=passing) for name, limit in wanted)

    def _wait(self, name: str, limit: Limit, *, passing: bool) -> float:
        now = self._clock()
        taken = self._taken.get(name, deque())
        while taken and taken[0] <= now - limit.seconds:
            taken.popleft()
        most = limit.calls - (limit.kept if passing else 0)
        return 0.0 if len(taken) < most else taken[len(taken) - most] + limit.seconds - now

    def _forget(self, seconds: float) -> None:
        """Places where nothing was said for long."""
        old = self._clock() - seconds
        self._taken = {name: taken for name, taken in self._taken.items() if taken and taken[-1] > old}
