"""Values that are made once for all who want them, and questions that may never be answered (D4, D6)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, TypeVar

from django.db import connection

T = TypeVar("T")
RENEW_DELAY_SECONDS = 0.2  # who asked is answered before the next one is made


class CachedValue(Generic[T]):
    """Made again when it is old; whoever comes meanwhile waits for the one that makes it."""

    def __init__(self, make: Callable[[], T], seconds: float) -> None:
        self._make, self._seconds = make, seconds
        self._lock = threading.Lock()
        self._made_at = float("-inf")
        self._values: list[T] = []  # one, or none yet
        self._renewing = threading.Lock()
        self.computations = 0

    def get(self) -> T:
        with self._lock:
            if not self._values or time.monotonic() - self._made_at >= self._seconds:
                self._values = [self._make()]
                self._made_at = time.monotonic()
                self.computations += 1
            return self._values[0]

    def get_stale(self, *, seconds: float) -> T:
        """What there is, at once, unless it is older than so; it is made again meanwhile, for whoever comes next."""
        values, age = self._values, time.monotonic() - self._made_at
        if not values or age >= seconds:
            return self.get()
        if age >= self._seconds and self._renewing.acquire(blocking=False):
            renewing = threading.Timer(RENEW_DELAY_SECONDS, self._renew)
            renewing.daemon = True
            renewing.start()
        return values[0]

    def _renew(self) -> None:
        try:
            self.get()
        finally:
            connection.close()  # this thread's own
            self._renewing.release()

    def clear(self) -> None:
        with self._lock:
            self._values = []


class BackgroundQuery(Generic[T]):
    """Asked on a thread that nobody waits for longer than he wants to; one at a time, or those who hang would gather."""

    def __init__(self, name: str, ask: Callable[[], T], *, away: tuple[type[Exception], ...]) -> None:
        self._name, self._ask, self._away = name, ask, away
        self._lock = threading.Lock()
        self._asked: Future[T | None] | None = None

    def start(self) -> Future[T | None]:
        """The one that is under way, or another."""
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked = Future()
                threading.Thread(
                    target=self._answer, args=[self._asked], name=self._name, daemon=True
                ).start()
            return self._asked

    def _answer(self, asked: Future[T | None]) -> None:
        answer: T | None = None
        try:
            with suppress(*self._away):
                answer = self._ask()
        finally:
            asked.set_result(answer)


def wait_for_answer(asked: Future[T | None], *, seconds: float) -> T | None:
    """None also when nobody has answered in time."""
    try:
        return asked.result(timeout=max(0.0, seconds))
    except TimeoutError:
        return None
