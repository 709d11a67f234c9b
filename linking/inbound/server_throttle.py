"""Who comes in a crowd waits in line: so many updates of one server a second, in each process that handles them (L27).

One server's thousand messages would otherwise take the worker, the database and the model's road from everybody else.
Nothing is kept here that matters: an update that lost its place with the process is found in the inbox by the sweep.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
import time
from collections.abc import Callable

from django.conf import settings
from django.db import connection

MAX_TRACKED_SERVERS = 1_000  # who has been through is of no interest
BUSY_RETRY_SECONDS = 0.2  # until a place that somebody is at is tried again, for those who wait in no line


def make_server_key(platform: str, server_id: str) -> str:
    """What a server is called in messages to the workers; nothing for a direct message, which waits for nobody."""
    return hashlib.sha256(f"{platform}\x1f{server_id}".encode()).hexdigest()[:16] if server_id else ""


class ServerThrottle:
    """A second's worth goes through at once, the others at that pace, one after the other in a thread of their own.

    The thread lives while somebody waits: those who come alone have all the others.
    """

    def __init__(self, handle: Callable[[int], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._handle = handle  # never raises; False: it must wait for another turn
        self._clock = clock
        self._mutex = threading.Lock()
        self._free_at: dict[str, float] = {}  # when the next of each crowd would have its turn
        self._waiting: list[tuple[float, int, str]] = []  # a heap: when, and which update of whom
        self._waiting_ids: set[int] = set()  # the same ones: the sweep may speak of them again
        self._thread: threading.Thread | None = None

    def try_pass(self, crowd: str, update_id: int) -> bool:
        """Whether its turn is now; if not, it is handled when it comes."""
        with self._mutex:
            if update_id in self._waiting_ids:
                return False
            if (turn := self._reserve_slot(crowd)) <= self._clock():
                return True
            self._enqueue(turn, update_id, crowd)
            return False

    def enqueue(self, crowd: str, update_id: int) -> None:
        """Its turn had come, and somebody was in its way; who is of no crowd tries again soon."""
        with self._mutex:
            self._enqueue(self._reserve_slot(crowd), update_id, crowd)

    def _enqueue(self, turn: float, update_id: int, crowd: str) -> None:
        heapq.heappush(self._waiting, (turn, update_id, crowd))
        self._waiting_ids.add(update_id)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="line", daemon=True)
            self._thread.start()

    def _reserve_slot(self, crowd: str) -> float:
        now = self._clock()
        if not crowd:
            return now + BUSY_RETRY_SECONDS
        if len(self._free_at) > MAX_TRACKED_SERVERS:
            self._free_at = {one: at for one, at in self._free_at.items() if at > now - 1}
        turn = max(self._free_at.get(crowd, 0.0), now - 1)  # what nobody used within a second is lost
        self._free_at[crowd] = turn + 1 / settings.LINK_SERVER_UPDATES_PER_SECOND
        return turn

    def _run(self) -> None:
        try:
            while (turn := self._next_due_at()) is not None:
                time.sleep(max(turn - self._clock(), 0.0))
                update_id, crowd = self._pop_next()
                if not self._handle(update_id):
                    self.enqueue(crowd, update_id)
        finally:
            connection.close()

    def _next_due_at(self) -> float | None:
        """When the next one's turn is; without one the thread is over, and the next to wait begins another."""
        with self._mutex:
            if self._waiting:
                return self._waiting[0][0]
            self._thread = None
            return None

    def _pop_next(self) -> tuple[int, str]:
        with self._mutex:
            _, update_id, crowd = heapq.heappop(self._waiting)
            self._waiting_ids.discard(update_id)
            return update_id, crowd
