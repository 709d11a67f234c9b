"""Read the database at one moment, cache values that are expensive to compute, and bound queries that may hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Generic, TypeVar

from django.db import connection, transaction

T = TypeVar("T")
RENEW_DELAY_SECONDS = 0.2  # so that the caller is answered before the next computation


class CachedValue(Generic[T]):
    """Recompute a value when it is old; concurrent callers wait for the one that computes it."""

    def __init__(self, make: Callable[[], T], seconds: float) -> None:
        self._make, self._seconds = make, seconds
        self._lock = threading.Lock()
        self._made_at = float("-inf")
        self._values: list[T] = []  # one, or none yet
        self._renewing = threading.Lock()
        self.computations = 0

    def get(self, *, max_age_seconds: float | None = None) -> T:
        with self._lock:
            limit = self._seconds if max_age_seconds is None else max_age_seconds
            if not self._values or time.monotonic() - self._made_at >= limit:
                self._values = [self._make()]
                self._made_at = time.monotonic()
                self.computations += 1
            return self._values[0]

    def get_stale(self, *, seconds: float) -> T:
        """Return the value at once unless it is older than `seconds`, and renew it in the background."""
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
            connection.close()  # the connection of this thread
            self._renewing.release()

    def clear(self) -> None:
        with self._lock:
            self._values = []


class BackgroundQuery(Generic[T]):
    """Run a query on a thread, one at a time, so that hanging queries do not pile up."""

    def __init__(self, name: str, ask: Callable[[], T], *, away: tuple[type[Exception], ...]) -> None:
        self._name, self._ask, self._away = name, ask, away
        self._lock = threading.Lock()
        self._asked: Future[T | None] | None = None

    def start(self) -> Future[T | None]:
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
    """Wait for the answer; return None if there is none in time."""
    try:
        return asked.result(timeout=max(0.0, seconds))
    except TimeoutError:
        return None


STATEMENT_TIMEOUT_SECONDS = 5


@contextmanager
def open_snapshot() -> Iterator[datetime]:
    """Read everything inside at this instant of the database's clock.

    Inside a transaction of the caller, that transaction's own snapshot and settings apply.
    """
    nested = connection.in_atomic_block
    with transaction.atomic(), connection.cursor() as cursor:
        if not nested:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute(f"SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT_SECONDS}s'")
        cursor.execute("SELECT statement_timestamp()")  # this also takes the snapshot
        yield cursor.fetchone()[0]


def get_database_time() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
        return moment


def accepts_writes() -> bool:
    """Tell whether transactions may write by default: not on a standby or a read-only server."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT NOT pg_is_in_recovery() AND current_setting('default_transaction_read_only') = 'off'"
        )
        return bool(cursor.fetchone()[0])
