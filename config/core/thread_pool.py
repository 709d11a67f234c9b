"""A thread pool that prefers the most recently used thread.

Each thread keeps a Postgres connection, which caches plans after a few uses. The standard pool rotates its threads, so
that under light load every connection stays cold and messages wait for planning.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any


class LifoThreadPool(ThreadPoolExecutor):
    def __init__(self, most: int, name: str) -> None:
        super().__init__(max_workers=most, thread_name_prefix=name)
        self._work_queue = _LifoWorkQueue()  # type: ignore[assignment]  # all it takes: who gets the next work


class _IdleThread(threading.local):
    def __init__(self) -> None:
        self.work: SimpleQueue[Any] = SimpleQueue()


class _LifoWorkQueue:
    """The pool's queue; work that finds no idle thread waits in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Any] = deque()
        self._resting: list[SimpleQueue[Any]] = []
        self._here = _IdleThread()

    def put(self, work: Any) -> None:
        with self._lock:
            if self._resting:
                self._resting.pop().put(work)
            else:
                self._waiting.append(work)

    def get_nowait(self) -> Any:
        with self._lock:
            if not self._waiting:
                raise Empty
            return self._waiting.popleft()

    def get(self, block: bool = True) -> Any:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._resting.append(self._here.work)
        return self._here.work.get()

    def qsize(self) -> int:
        return len(self._waiting)
