"""Run database code from the event loop on a bounded thread pool, and defer the WAL flush of intermediate commits.

Postgres writes its log in order: whatever is committed with `LATER` is durable as soon as any ordinary commit after it
is. A sequence of commits therefore waits for the disk once, where something is acknowledged. Rows are visible at once
either way; only a crash of Postgres within a fraction of a second can tell the difference.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection

from config.core.thread_pool import LifoThreadPool

ASYNC_COMMIT = (
    "set_config('synchronous_commit', 'off', true) = 'off'"  # true in a WHERE, for its transaction alone
)


def flush_wal() -> None:
    """Return when everything committed before, here or elsewhere, survives a crash of the database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_logical_emit_message(true, 'pilothouse', '')")  # a commit of nothing else


log = logging.getLogger(__name__)

MAX_DATABASE_OUTAGE_SECONDS = 30.0  # a database away longer than this interrupts the turn
DATABASE_RETRY_SECONDS = 0.25

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

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
            log.warning("the database is unreachable, trying again")
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
