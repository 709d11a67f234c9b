"""The beat at which words are taken from models and told to clients: the first at once, then a few dozen times a second.

Reading a stream and telling its log to the same beat costs nobody time: what would wait to be told waits to be read,
and many words cost one way through the turn. Those who are due about the same time share a timer and a flush.
"""

from __future__ import annotations

import asyncio
import math
import time
from weakref import WeakKeyDictionary

MIN_DELTA_INTERVAL_SECONDS = 0.03  # words of one block go out at most this often, the first at once (T8.5)
BEAT_SECONDS = 0.04  # who is on it stays on it, though a little early or late
LEEWAY_SECONDS = 0.01  # beyond this a late one leaves out a beat; until then it comes as soon as it may
PHASE_COUNT = 2  # half of the turns on the beat, half between: fewer at once
TIMER_RESOLUTION_SECONDS = 0.001  # as exactly as timers ring


def get_phase(turn_id: str) -> float:
    """Seconds behind the beat; whoever reads for a turn and whoever tells of it find the same."""
    return ord(turn_id[-1]) % PHASE_COUNT * BEAT_SECONDS / PHASE_COUNT if turn_id else 0.0


def get_next_due_at(now: float, phase: float) -> float:
    """When what was read or told `now` may be followed by more, on the monotonic clock."""
    soonest = now + MIN_DELTA_INTERVAL_SECONDS
    beats = math.ceil((soonest - LEEWAY_SECONDS - phase) / BEAT_SECONDS)
    return max(soonest, beats * BEAT_SECONDS + phase)


class BeatTimer:
    """Who waits for the next beat on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._resting: dict[float, list[asyncio.Future[None]]] = {}

    def next_beat(self, phase: float) -> asyncio.Future[None]:
        """Done at the next beat, unless whoever waits sets it earlier."""
        future: asyncio.Future[None] = self._loop.create_future()
        now = time.monotonic()
        due_at = get_next_due_at(now, phase)
        resting = self._resting.get(due_at)
        if resting is None:
            resting = self._resting[due_at] = []
            self._loop.call_later(due_at - now, self._finish_beat, due_at)
        resting.append(future)
        return future

    def _finish_beat(self, due_at: float) -> None:
        for future in self._resting.pop(due_at):
            if not future.done():
                future.set_result(None)


_timers_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, BeatTimer] = WeakKeyDictionary()


def get_beat_timer() -> BeatTimer:
    """Those of the running loop."""
    loop = asyncio.get_running_loop()
    found = _timers_by_loop.get(loop)
    if found is None:
        found = _timers_by_loop[loop] = BeatTimer(loop)
    return found
