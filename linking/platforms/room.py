"""How much a platform takes from us at a time: counts over sliding windows, asked before a call is made (L20)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from linking.platforms.base import Busy

PATIENCE_SECONDS = 4.0  # for a place that is nearly free; beyond that whoever asked decides
MANY_WINDOWS = 2_000


@dataclass(frozen=True, kw_only=True)
class Limit:
    """So many calls in any stretch of so many seconds; `kept` of them are for what must be said."""

    calls: int
    seconds: float
    kept: int = 0


@dataclass
class _Window:
    seconds: float
    under_way: int = 0
    ended: deque[float] = field(default_factory=deque)


class Room:
    """One bot account's windows, by what each counts. They guard; what the platform itself answers wins.

    When a call arrives there nobody here knows: some time after it was let go and before it was answered. So it holds
    its place all that while and a window's length from its answer on; then no stretch of the platform's own time holds
    more than the limit, however long each call was under way.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._windows: dict[str, _Window] = {}

    @asynccontextmanager
    async def place(
        self, wanted: Sequence[tuple[str, Limit]], *, passing: bool = False
    ) -> AsyncIterator[None]:
        """One in every window, after a short wait if need be; raises `Busy`. `passing`: it may as well be left out."""
        deadline = self._clock() + (0.0 if passing else PATIENCE_SECONDS)
        while (wait := self.seconds_until(wanted, passing=passing)) > 0:
            if self._clock() + wait > deadline:
                raise Busy(wait)
            await self._sleep(wait)
        windows = [self._windows.setdefault(name, _Window(limit.seconds)) for name, limit in wanted]
        for window in windows:
            window.under_way += 1
        try:
            yield
        finally:
            for window in windows:
                window.under_way -= 1
                window.ended.append(self._clock())
            if len(self._windows) > MANY_WINDOWS:
                self._forget()

    def seconds_until(self, wanted: Sequence[tuple[str, Limit]], *, passing: bool) -> float:
        """At the earliest: a call that is under way is taken to be answered now."""
        return max((self._wait(name, limit, passing=passing) for name, limit in wanted), default=0.0)

    def _wait(self, name: str, limit: Limit, *, passing: bool) -> float:
        now = self._clock()
        window = self._windows.get(name, _Window(limit.seconds))
        while window.ended and window.ended[0] <= now - limit.seconds:
            window.ended.popleft()
        most = limit.calls - (limit.kept if passing else 0)
        over = len(window.ended) + window.under_way - most
        if over < 0:
            return 0.0
        return (window.ended[over] if over < len(window.ended) else now) + limit.seconds - now

    def _forget(self) -> None:
        """Places where nothing was said for long."""
        now = self._clock()
        self._windows = {
            name: window
            for name, window in self._windows.items()
            if window.under_way or (window.ended and window.ended[-1] > now - window.seconds)
        }
