"""Keep calls to a platform within its rate limits by counting them in sliding windows."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from linking.platforms.base import PlatformBusy

MAX_WAIT_SECONDS = 4.0  # longer waits are left to the caller
MAX_WINDOWS = 2_000


@dataclass(frozen=True, kw_only=True)
class CallLimit:
    """At most `calls` calls in any period of `seconds`."""

    calls: int
    seconds: float
    kept: int = 0  # reserved for calls that must not be skipped


@dataclass
class _CallWindow:
    seconds: float
    in_flight: int = 0
    ended: deque[float] = field(default_factory=deque)
    waiting: list[object] = field(default_factory=list)  # callers waiting for a slot, in order
    blocked_until: float = float("-inf")  # set when the platform refused a call

    def opens_at(self, now: float, max_calls: int, ahead: int) -> float:
        """Return the earliest time for one more call behind `ahead` others, as if calls in flight ended now."""
        while self.ended and self.ended[0] <= now - self.seconds:
            self.ended.popleft()
        over = len(self.ended) + self.in_flight + ahead - max_calls
        if over < 0:
            return max(now, self.blocked_until)
        if over < len(self.ended):
            return max(self.ended[over] + self.seconds, self.blocked_until)
        rounds = 1 + (over - len(self.ended)) // max(max_calls, 1)
        return max(now + rounds * self.seconds, self.blocked_until)

    def is_idle(self, now: float) -> bool:
        last = self.ended[-1] if self.ended else float("-inf")
        busy = self.in_flight or self.waiting
        return not busy and max(last + self.seconds, self.blocked_until) <= now


class CallLimiter:
    """The windows of one bot account. If the platform refuses a call anyway, its answer counts.

    We do not know when the platform counts a call: some time between sending it and receiving the answer. So a call
    occupies its slot while it is in flight and for one window after its answer. That way no period of the platform's
    own clock contains more calls than the limit, however long each call takes.
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
        self, limits: Sequence[tuple[str, CallLimit]], *, passing: bool = False
    ) -> AsyncIterator[None]:
        """Hold one slot in every window during a call, after a short wait if necessary; raise PlatformBusy.

        List the narrowest window last. `passing` calls may be skipped: they neither wait nor use reserved slots.
        """
        await self._wait_for_slot(limits, passing=passing)
        windows = [self._window(name, limit) for name, limit in limits]
        for window in windows:
            window.in_flight += 1
        try:
            yield
        except PlatformBusy as problem:  # holds for everybody who calls the narrowest window
            for window in windows[-1:]:
                window.blocked_until = self._clock() + problem.retry_after_seconds
            raise
        finally:
            for window in windows:
                window.in_flight -= 1
                window.ended.append(self._clock())
            if len(self._windows) > MAX_WINDOWS:
                self._drop_idle_windows()

    async def _wait_for_slot(self, limits: Sequence[tuple[str, CallLimit]], *, passing: bool) -> None:
        """Queue for each window and sleep until this caller's own slot is free.

        The narrowest window comes first, so that those who wait for their own chat do not block others.
        """
        deadline = self._clock() + (0.0 if passing else MAX_WAIT_SECONDS)
        caller, entered = object(), []
        try:
            for name, limit in reversed(limits):
                entered.append((name, limit))
                if not passing:
                    self._window(name, limit).waiting.append(caller)
                while (wait := self.seconds_until(entered, passing=passing, caller=caller)) > 0:
                    if self._clock() + wait > deadline:
                        raise PlatformBusy(wait)
                    await self._sleep(wait)
        finally:
            for name, _ in entered if not passing else ():
                self._windows[name].waiting.remove(caller)

    def seconds_until(
        self, limits: Sequence[tuple[str, CallLimit]], *, passing: bool, caller: object | None = None
    ) -> float:
        """Return the wait of a queued caller `me`, or of a new one."""
        now = self._clock()
        return (
            max((self._opens_at(name, limit, now, passing, caller) for name, limit in limits), default=now)
            - now
        )

    def _opens_at(
        self, name: str, limit: CallLimit, now: float, passing: bool, caller: object | None
    ) -> float:
        window = self._windows.get(name)
        if window is None:
            return now
        ahead = window.waiting.index(caller) if caller in window.waiting else len(window.waiting)
        return window.opens_at(now, limit.calls - (limit.kept if passing else 0), ahead)

    def _window(self, name: str, limit: CallLimit) -> _CallWindow:
        return self._windows.setdefault(name, _CallWindow(limit.seconds))

    def _drop_idle_windows(self) -> None:
        now = self._clock()
        self._windows = {name: window for name, window in self._windows.items() if not window.is_idle(now)}
