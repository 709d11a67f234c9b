"""The one way from the event loop to the database: a bounded pool of threads that keep their connections."""

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

from copilot.pool import WarmPool

log = logging.getLogger(__name__)

OUTAGE_SECONDS = 30.0  # a database away longer than this interrupts the turn (T9.3)
RETRY_SECONDS = 0.25

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

_threads = WarmPool(settings.DATABASE_THREADS, "database")


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run synchronous database code off the loop, with the caller's context variables."""
    context = contextvars.copy_context()

    def call() -> R:
        return _with_connection(lambda: context.run(function, *args, **kwargs))

    return await asyncio.get_running_loop().run_in_executor(_threads, call)


async def retried(function: Callable[[A], R], argument: A) -> R:
    """The same for work that may be done twice: an outage is waited out for a while (T9.3)."""
    began = time.monotonic()
    while True:
        try:
            return await in_thread(function, argument)
        except (OperationalError, InterfaceError):
            if time.monotonic() - began > OUTAGE_SECONDS:
                raise
            log.warning("the database is unreachable, trying again")
            await asyncio.sleep(RETRY_SECONDS)


class _Server:
    """How often the database was seen to go away; connections from before the last time are not trusted."""

    lives = 0


class _Thread(threading.local):
    life = 0


_thread = _Thread()


def _with_connection(function: Callable[[], R]) -> R:
    """A connection that broke is dropped, and so are those of the other threads: they broke with it."""
    if _thread.life != _Server.lives:
        _thread.life = _Server.lives
        connection.close()
    try:
        return function()
    finally:
        if connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()
            if connection.connection is None:
                _Server.lives += 1
                _thread.life = _Server.lives
