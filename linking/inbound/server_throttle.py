"""Limit how many updates of one server a process handles per second, so that a busy server cannot starve the others.

The queue lives in memory only: an update that is lost with its process is found again by the sweep over stored updates.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
import time
from collections.abc import Callable

from django.conf import settings
from django.db import connection

MAX_TRACKED_SERVERS = 1_000  # above this, idle servers are forgotten
BUSY_RETRY_SECONDS = 0.2  # delay before an unthrottled update is tried again when its place is locked


def make_server_key(platform: str, server_id: str) -> str:
    """Return a short key for a server, or "" for direct messages, which are not throttled."""
    return hashlib.sha256(f"{platform}\x1f{server_id}".encode()).hexdigest()[:16] if server_id else ""


class ServerThrottle:
    """Let one second's worth of updates per server through at once and handle the rest at that rate in a thread.

    The thread exists only while updates are waiting.
    """

    def __init__(self, handle: Callable[[int], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._handle = handle  # must not raise; returns False if the update has to wait for another slot
        self._clock = clock
        self._mutex = threading.Lock()
        self._free_at: dict[str, float] = {}  # time of the next free slot by server
        self._waiting: list[tuple[float, int, str]] = []  # heap of due time, update id, server key
        self._waiting_ids: set[int] = set()  # ids in the heap: the sweep may submit them again
        self._thread: threading.Thread | None = None

    def try_pass(self, server_key: str, update_id: int) -> bool:
        """Return True if the update may be handled now; otherwise queue it until its slot comes."""
        with self._mutex:
            if update_id in self._waiting_ids:
                return False
            if (due_at := self._reserve_slot(server_key)) <= self._clock():
                return True
            self._enqueue(due_at, update_id, server_key)
            return False

    def enqueue(self, server_key: str, update_id: int) -> None:
        """Queue an update whose place was locked when its slot came."""
        with self._mutex:
            self._enqueue(self._reserve_slot(server_key), update_id, server_key)

    def _enqueue(self, due_at: float, update_id: int, server_key: str) -> None:
        heapq.heappush(self._waiting, (due_at, update_id, server_key))
        self._waiting_ids.add(update_id)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="server-throttle", daemon=True)
            self._thread.start()

    def _reserve_slot(self, server_key: str) -> float:
        now = self._clock()
        if not server_key:
            return now + BUSY_RETRY_SECONDS
        if len(self._free_at) > MAX_TRACKED_SERVERS:
            self._free_at = {key: free_at for key, free_at in self._free_at.items() if free_at > now - 1}
        due_at = max(self._free_at.get(server_key, 0.0), now - 1)  # unused slots expire after a second
        self._free_at[server_key] = due_at + 1 / settings.LINK_SERVER_UPDATES_PER_SECOND
        return due_at

    def _run(self) -> None:
        try:
            while (due_at := self._next_due_at()) is not None:
                time.sleep(max(due_at - self._clock(), 0.0))
                update_id, server_key = self._pop_next()
                if not self._handle(update_id):
                    self.enqueue(server_key, update_id)
        finally:
            connection.close()

    def _next_due_at(self) -> float | None:
        with self._mutex:
            if self._waiting:
                return self._waiting[0][0]
            self._thread = None  # this thread ends; the next waiting update starts another
            return None

    def _pop_next(self) -> tuple[int, str]:
        with self._mutex:
            _, update_id, server_key = heapq.heappop(self._waiting)
            self._waiting_ids.discard(update_id)
            return update_id, server_key
