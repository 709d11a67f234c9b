"""How much a platform takes from us at a time: counts over sliding windows, asked before a call is made (L20)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from linking.platforms.base import PlatformBusy

MAX_WAIT_SECONDS = 4.0  # for a place that is nearly free; beyond that whoever asked decides
MAX_WINDOWS = 2_000


@dataclass(frozen=True, kw_only=True)
class CallLimit:
    """So many calls in any stretch of so many seconds; `kept` of them are for what must be said."""

    calls: int
    seconds: float
    kept: int = 0


@dataclass
class _CallWindow:
    seconds: float
    under_way: int = 0
    ended: deque[float] = field(default_factory=deque)
    line: list[object] = field(default_factory=list)  # who waits for a place, the first in front
    shut_until: float = float("-inf")  # as the platform has said

    def opens_at(self, now: float, most: int, ahead: int) -> float:
        """When one more of `most` may go behind those `ahead`, at the earliest: what is under way is taken to be
        answered now."""
        while self.ended and self.ended[0] <= now - self.seconds:
            self.ended.popleft()
        over = len(self.ended) + self.under_way + ahead - most
        if over < 0:
            return max(now, self.shut_until)
        if over < len(self.ended):
            return max(self.ended[over] + self.seconds, self.shut_until)
        rounds = 1 + (over - len(self.ended)) // max(most, 1)
        return max(now + rounds * self.seconds, self.shut_until)

    def is_idle(self, now: float) -> bool:
        last = self.ended[-1] if self.ended else float("-inf")
        busy = self.under_way or self.line
        return not busy and max(last + self.seconds, self.shut_until) <= now


class CallLimiter:
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
        self._windows: dict[str, _CallWindow] = {}

    @asynccontextmanager
    async def acquire_slot(
        self, wanted: Sequence[tuple[str, CallLimit]], *, passing: bool = False
    ) -> AsyncIterator[None]:
        """One in every window, the narrowest last, after a short wait if need be; raises `Busy`. `passing`: it may as
        well be left out."""
        await self._wait_for_slot(wanted, passing=passing)
        windows = [self._window(name, limit) for name, limit in wanted]
        for window in windows:
            window.under_way += 1
        try:
            yield
        except PlatformBusy as problem:  # said of where this was, to everybody who speaks there
            for window in windows[-1:]:
                window.shut_until = self._clock() + problem.retry_after_seconds
            raise
        finally:
            for window in windows:
                window.under_way -= 1
                window.ended.append(self._clock())
            if len(self._windows) > MAX_WINDOWS:
                self._drop_idle_windows()

    async def _wait_for_slot(self, wanted: Sequence[tuple[str, CallLimit]], *, passing: bool) -> None:
        """In line, and asleep until its own place is free: hundreds who look at each that comes free would do nothing
        else. The narrowest comes first: who waits for their own chat stands in nobody's way."""
        deadline = self._clock() + (0.0 if passing else MAX_WAIT_SECONDS)
        me, asked = object(), []
        try:
            for name, limit in reversed(wanted):
                asked.append((name, limit))
                if not passing:
                    self._window(name, limit).line.append(me)
                while (wait := self.seconds_until(asked, passing=passing, me=me)) > 0:
                    if self._clock() + wait > deadline:
                        raise PlatformBusy(wait)
                    await self._sleep(wait)
        finally:
            for name, _ in asked if not passing else ():
                self._windows[name].line.remove(me)

    def seconds_until(
        self, wanted: Sequence[tuple[str, CallLimit]], *, passing: bool, me: object | None = None
    ) -> float:
        """For who stands in line, or comes now."""
        now = self._clock()
        return (
            max((self._opens_at(name, limit, now, passing, me) for name, limit in wanted), default=now) - now
        )

    def _opens_at(self, name: str, limit: CallLimit, now: float, passing: bool, me: object | None) -> float:
        window = self._windows.get(name)
        if window is None:
            return now
        ahead = window.line.index(me) if me in window.line else len(window.line)
        return window.opens_at(now, limit.calls - (limit.kept if passing else 0), ahead)

    def _window(self, name: str, limit: CallLimit) -> _CallWindow:
        return self._windows.setdefault(name, _CallWindow(limit.seconds))

    def _drop_idle_windows(self) -> None:
        """Places where nothing was said for long."""
        now = self._clock()
        self._windows = {name: window for name, window in self._windows.items() if not window.is_idle(now)}
