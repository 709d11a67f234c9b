"""The one way from the event loop to the database: a bounded pool of threads that keep their connections."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from django.conf import settings
from django.db import connection

from copilot.pool import WarmPool

P = ParamSpec("P")
R = TypeVar("R")

_threads = WarmPool(settings.DATABASE_THREADS, "database")


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run synchronous database code off the loop, with the caller's context variables."""
    context = contextvars.copy_context()

    def call() -> R:
        return _with_connection(lambda: context.run(function, *args, **kwargs))

    return await asyncio.get_running_loop().run_in_executor(_threads, call)


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
