"""The one way from the event loop to the database: a bounded pool of threads that keep their connections."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.conf import settings
from django.db import connection

P = ParamSpec("P")
R = TypeVar("R")

_threads = ThreadPoolExecutor(max_workers=settings.DATABASE_THREADS, thread_name_prefix="database")


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run synchronous database code off the loop, with the caller's context variables."""
    context = contextvars.copy_context()

    def call() -> R:
        return _with_connection(lambda: context.run(function, *args, **kwargs))

    return await asyncio.get_running_loop().run_in_executor(_threads, call)


def _with_connection(function: Callable[[], R]) -> R:
    """A connection that broke is dropped, so that the next call on this thread gets a fresh one."""
    try:
        return function()
    finally:
        if connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()
