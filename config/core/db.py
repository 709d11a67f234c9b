"""Run database code from the event loop on a bounded thread pool, defer the WAL flush of intermediate commits, and
read the rows of raw statements by name.

Postgres writes its log in order: rows committed with `ASYNC_COMMIT` are durable as soon as any ordinary commit after
them is. A sequence of commits therefore waits for the disk once, where something is acknowledged. Rows are visible at once
either way; only a crash of Postgres within a fraction of a second can tell the difference.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, connections
from django.db.backends.utils import CursorWrapper
from psycopg import pq
from psycopg.conninfo import make_conninfo

log = structlog.get_logger(__name__)

ASYNC_COMMIT = (
    "set_config('synchronous_commit', 'off', true) = 'off'"  # true in a WHERE, for its transaction alone
)


def flush_wal() -> None:
    """Return when everything committed before, here or elsewhere, survives a crash of the database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_logical_emit_message(true, 'pilothouse', '')")  # a commit of nothing else


Row = TypeVar("Row")  # a NamedTuple, or a dataclass with positional fields
OtherRow = TypeVar("OtherRow")
Parameters = Mapping[str, Any] | Sequence[Any]

_checked_statements: set[tuple[type, str]] = set()


def fetch_all(row_type: type[Row], statement: str, parameters: Parameters | None = None) -> list[Row]:
    """Run a statement whose columns have the names of the row type's fields, in their order.

    The names are compared once per statement and process: reading them costs 70 µs for 30 columns.
    """
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        _check_columns(row_type, statement, cursor)
        return [row_type(*row) for row in cursor.fetchall()]


def fetch_one(row_type: type[Row], statement: str, parameters: Parameters | None = None) -> Row | None:
    """Like fetch_all, for a statement with at most one row."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        _check_columns(row_type, statement, cursor)
        row = cursor.fetchone()
    return None if row is None else row_type(*row)


@dataclass(frozen=True)
class Query(Generic[Row]):
    """A statement with its parameters and the type of its rows."""

    row_type: type[Row]
    statement: str
    parameters: Parameters | None = None


def fetch_both(first: Query[Row], second: Query[OtherRow]) -> tuple[list[Row], list[OtherRow]]:
    """Run two statements in one round trip and one transaction."""
    with connection.cursor() as one, connection.cursor() as other:
        with connection.wrap_database_errors, connection.connection.pipeline():
            one.execute(first.statement, first.parameters)
            other.execute(second.statement, second.parameters)
        _check_columns(first.row_type, first.statement, one)
        _check_columns(second.row_type, second.statement, other)
        return (
            [first.row_type(*row) for row in one.fetchall()],
            [second.row_type(*row) for row in other.fetchall()],
        )


def _check_columns(row_type: type[Row], statement: str, cursor: CursorWrapper) -> None:
    if (row_type, statement) in _checked_statements:
        return
    fields: tuple[str, ...] = row_type.__match_args__  # type: ignore[attr-defined]
    columns = tuple(column.name for column in cursor.description)
    if columns != fields:
        raise TypeError(
            f"{row_type.__qualname__} has the fields {fields}, but the statement returns {columns}."
        )
    _checked_statements.add((row_type, statement))


MAX_DATABASE_OUTAGE_SECONDS = 30.0  # a database away longer than this interrupts the turn
DATABASE_RETRY_SECONDS = 0.25

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class LifoThreadPool(ThreadPoolExecutor):
    """Prefer the most recently used thread.

    Each thread keeps a Postgres connection, which caches plans after a few uses. The standard pool rotates its threads,
    so that under light load every connection stays cold and messages wait for planning.
    """

    def __init__(self, most: int, name: str) -> None:
        super().__init__(max_workers=most, thread_name_prefix=name)
        self._work_queue = _LifoWorkQueue()  # type: ignore[assignment]  # it decides which thread gets the next work


class _IdleThread(threading.local):
    def __init__(self) -> None:
        self.work: SimpleQueue[Any] = SimpleQueue()


class _LifoWorkQueue:
    """Hand work to the thread that became idle last; work that finds none waits in order."""

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


_database_threads = LifoThreadPool(settings.DATABASE_THREADS, "database")


async def run_in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run synchronous database code off the loop, with the caller's context variables."""
    context = contextvars.copy_context()

    def call() -> R:
        return _run_with_connection(lambda: context.run(function, *args, **kwargs))

    return await asyncio.get_running_loop().run_in_executor(_database_threads, call)


async def run_in_thread_with_retry(function: Callable[[A], R], argument: A) -> R:
    """Like run_in_thread, for repeatable work: wait out an outage for a while."""
    began = time.monotonic()
    while True:
        try:
            return await run_in_thread(function, argument)
        except (OperationalError, InterfaceError):
            if time.monotonic() - began > MAX_DATABASE_OUTAGE_SECONDS:
                raise
            log.warning("database_unreachable")
            await asyncio.sleep(DATABASE_RETRY_SECONDS)


class _DatabaseState:
    """Count the outages seen; connections from before the last one are not trusted."""

    outage_count = 0


class _ThreadOutages(threading.local):
    seen_count = 0


_thread_outages = _ThreadOutages()


def _run_with_connection(function: Callable[[], R]) -> R:
    """Drop a broken connection, and those of other threads too, because they broke with it."""
    if _thread_outages.seen_count != _DatabaseState.outage_count:
        _thread_outages.seen_count = _DatabaseState.outage_count
        connection.close()
    try:
        return function()
    finally:
        if connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()
            if connection.connection is None:
                _DatabaseState.outage_count += 1
                _thread_outages.seen_count = _DatabaseState.outage_count


DIRECT_ALIAS = "direct"  # configured only where the default connection leads to a pooler


def has_pooler() -> bool:
    return DIRECT_ALIAS in settings.DATABASES


@contextmanager
def use_direct_connection() -> Iterator[None]:
    """Make this thread's default connection one that no pooler shares between clients.

    A pooler in transaction mode gives every transaction another server connection. Advisory locks and settings that
    outlast a transaction would stay behind on it, for the next client.
    """
    if not has_pooler():
        yield
        return
    pooled = connections["default"]
    if pooled.in_atomic_block:
        raise RuntimeError("The connection cannot be changed inside a transaction.")
    direct = connections[DIRECT_ALIAS]
    direct.close_if_unusable_or_obsolete()
    connections["default"] = direct
    try:
        yield
    finally:
        connections["default"] = pooled


def build_connection_string(
    *, connect_timeout_seconds: int | None = None, server_options: str = "", past_pooler: bool = True
) -> str:
    """Return a libpq connection string with everything that Django connects with, TLS and timeouts included.

    It leads past a pooler, to Postgres itself, unless told otherwise. Picking single parameters once dropped `sslmode`, and those connections
    were not encrypted. Therefore only the parameters that libpq does not know, those of Django and psycopg, are left out.
    """
    names = {default.keyword.decode() for default in pq.Conninfo.get_defaults()}
    given = connections[DIRECT_ALIAS if past_pooler and has_pooler() else "default"].get_connection_params()
    parameters = {name: value for name, value in given.items() if name in names}
    if connect_timeout_seconds is not None:
        parameters["connect_timeout"] = connect_timeout_seconds
    if server_options:
        parameters["options"] = f"{parameters.get('options', '')} {server_options}".strip()
    return make_conninfo(**parameters)
