"""Everything there is to know, read once: the summary of D4, and what findings need besides (D4, D12)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Generic, TypeVar

from django.db import Error, connection

from copilot.errors import Unavailable
from copilot.queries import inventory
from diagnostics import conditions
from diagnostics.findings import Summary
from diagnostics.reading import one_moment
from diagnostics.snapshot import broker, counting

CACHE_SECONDS = 5.0
BROKER_SECONDS = 1.5  # longer, and its figures are left out
T = TypeVar("T")


class Shared(Generic[T]):
    """A value that is made again when it is old; whoever comes meanwhile waits for the one that makes it."""

    def __init__(self, make: Callable[[], T], seconds: float) -> None:
        self._make, self._seconds = make, seconds
        self._lock = threading.Lock()
        self._made_at = float("-inf")
        self._value: T | None = None
        self.computations = 0

    def get(self) -> T:
        with self._lock:
            if self._value is None or time.monotonic() - self._made_at >= self._seconds:
                self._value = self._make()
                self._made_at = time.monotonic()
                self.computations += 1
            return self._value

    def forget(self) -> None:
        with self._lock:
            self._value = None


def compute() -> Summary:
    """Now, whatever is remembered; a source that fails leaves its figures out and its name behind."""
    degraded: list[str] = []
    queues = _on_thread(broker.depths)
    figures: counting.Figures = {}
    now = datetime.now(UTC)
    try:
        with one_moment() as now:
            figures = counting.figures(conditions.judged(now))
    except Error:
        connection.close()
        degraded.append("postgres")
    depths = _awaited(queues)
    if depths is None:
        degraded.append("broker")
    try:
        waking = inventory.wakeups_waiting()
    except Unavailable:
        degraded.append("redis")
        waking = None
    by_queue = (
        None if depths is None else {**depths.by_queue, **({"wakeups": waking} if waking is not None else {})}
    )
    return Summary(
        taken_at=now,
        degraded=tuple(sorted(degraded)),
        broker_depth=None if by_queue is None else {**by_queue, "total": sum(by_queue.values())},
        broker_unacked=depths.unacked if depths else None,
        **figures,  # type: ignore[arg-type]  # named as D4 names them
    )


def _on_thread(ask: Callable[[], T]) -> Future[T]:
    """On a thread that nobody waits for longer than he wants to."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(ask())
        except broker.UNREACHABLE as problem:
            future.set_exception(problem)

    threading.Thread(target=run, name="broker depths", daemon=True).start()
    return future


def _awaited(future: Future[T]) -> T | None:
    try:
        return future.result(timeout=BROKER_SECONDS)
    except (TimeoutError, *broker.UNREACHABLE):
        return None


_shared = Shared(compute, CACHE_SECONDS)


def summary() -> Summary:
    """At most five seconds old; of all who ask at once, one computes."""
    return _shared.get()


def forget() -> None:
    """After a repair: who made it wants to see what it did."""
    _shared.forget()
