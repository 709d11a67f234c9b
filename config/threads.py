"""Where synchronous views run: a bounded set of threads that keep their connections, shared by all requests.

Django alone gives every request a thread, and so a connection to Postgres, of its own: a few hundred requests at once are
more than the server takes, and each pays for both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, Self, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from django.conf import settings
from django.db import close_old_connections

from copilot.pool import WarmPool

P = ParamSpec("P")
R = TypeVar("R")

_threads = WarmPool(settings.WEB_THREADS, "web")
_at_doors = WarmPool(
    settings.WEB_DOOR_THREADS, "door"
)  # a platform that sends a thousand at once keeps no page waiting
DOORS = "/hooks/"


class _Thread(threading.local):
    lane: Lane | None = None  # whose work it did last


_thread = _Thread()


class Lane(Executor):
    """One request's way to the threads; between its calls it holds none, so a stream that waits keeps nobody waiting."""

    def __init__(self, threads: WarmPool) -> None:
        self._threads = threads

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return self._threads.submit(self._run, fn, *args, **kwargs)

    def _run(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if _thread.lane is not self:
            _thread.lane = self
            close_old_connections()  # the one this thread kept is looked at anew with each request
        return fn(*args, **kwargs)


class _Laned(ThreadSensitiveContext):
    """Instead of a thread of its own, whoever is served has a lane; contexts inside give way to this one.

    It is set whatever stands there: a connection that is kept alive may carry the context of an earlier request into
    the next, and each call under one that is over would get a thread, and a connection to Postgres, that nobody ends.
    """

    def __init__(self, threads: WarmPool) -> None:
        super().__init__()
        self._threads = threads

    async def __aenter__(self) -> Self:
        self.token = SyncToAsync.thread_sensitive_context.set(self)
        SyncToAsync.context_to_thread_executor[self] = Lane(self._threads)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.token is not None
        SyncToAsync.thread_sensitive_context.reset(self.token)  # the lane goes with the last who holds this


class SharedThreads:
    """Around all requests; sockets have the bridge's threads."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        at_door = scope["path"].startswith(DOORS)
        async with _Laned(_at_doors if at_door else _threads):
            await self._application(scope, receive, send)
