"""Time the deltas of streamed answers: the first one at once, then a few dozen times a second.

Model streams are read and their deltas published on the same ticks. That costs no time, because a delta would wait for
the next publish anyway, and many deltas pass through the turn as one. Turns with the same tick share a timer and a flush.
"""

from __future__ import annotations

import asyncio
import math
import time
from weakref import WeakKeyDictionary

MIN_DELTA_INTERVAL_SECONDS = 0.03  # deltas of one block are published at most this often
BEAT_SECONDS = 0.04  # ticks are multiples of this on the monotonic clock
LEEWAY_SECONDS = (
    0.01  # a tick missed by up to this much is made up for at once; after that the next one counts
)
PHASE_COUNT = 2  # half of the turns tick between the others, so that fewer are due at once
TIMER_RESOLUTION_SECONDS = 0.001


def get_phase(turn_id: str) -> float:
    """Return a turn's offset in seconds; the same for the reader of its stream and for its publisher."""
    return ord(turn_id[-1]) % PHASE_COUNT * BEAT_SECONDS / PHASE_COUNT if turn_id else 0.0


def get_next_due_at(now: float, phase: float) -> float:
    """Return when more may follow a read or publish at `now`, on the monotonic clock."""
    soonest = now + MIN_DELTA_INTERVAL_SECONDS
    beats = math.ceil((soonest - LEEWAY_SECONDS - phase) / BEAT_SECONDS)
    return max(soonest, beats * BEAT_SECONDS + phase)


class BeatTimer:
    """The timer of one event loop. Futures with the same tick share one call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[float, list[asyncio.Future[None]]] = {}

    def next_beat(self, phase: float) -> asyncio.Future[None]:
        """Return a future that is done at the next tick. Its owner may set it earlier."""
        future: asyncio.Future[None] = self._loop.create_future()
        now = time.monotonic()
        due_at = get_next_due_at(now, phase)
        waiting = self._waiting.get(due_at)
        if waiting is None:
            waiting = self._waiting[due_at] = []
            self._loop.call_later(due_at - now, self._finish_beat, due_at)
        waiting.append(future)
        return future

    def _finish_beat(self, due_at: float) -> None:
        for future in self._waiting.pop(due_at):
            if not future.done():
                future.set_result(None)


_timers_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, BeatTimer] = WeakKeyDictionary()


def get_beat_timer() -> BeatTimer:
    loop = asyncio.get_running_loop()
    timer = _timers_by_loop.get(loop)
    if timer is None:
        timer = _timers_by_loop[loop] = BeatTimer(loop)
    return timer
