"""Serve requests with synchronous views on a bounded thread pool, crossing to a thread once per request.

Django alone gives every request its own thread and Postgres connection, more than the server accepts under load. Under
ASGI it also crosses to a thread and back for each synchronous middleware: an empty page took twenty crossings and
3.5 ms. Here everything around a synchronous view runs in one crossing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import IO, Any, ParamSpec, Self, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, iscoroutinefunction, sync_to_async
from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.core.handlers.base import BaseHandler
from django.core.handlers.exception import convert_exception_to_response
from django.core.signals import request_started
from django.db import close_old_connections, reset_queries
from django.http import HttpRequest, HttpResponseBadRequest
from django.http.response import HttpResponseBase
from django.urls import Resolver404, ResolverMatch, resolve

from config.core.db import LifoThreadPool
from config.middleware import api_errors, request_id

P = ParamSpec("P")
R = TypeVar("R")

_web_threads = LifoThreadPool(settings.WEB_THREADS, "web")
_webhook_threads = LifoThreadPool(
    settings.WEB_DOOR_THREADS, "door"
)  # a separate pool, so that a platform that sends a thousand updates at once delays no page
WEBHOOK_PATH_PREFIX = "/hooks/"


class _ThreadState(threading.local):
    executor: RequestExecutor | None = None  # the request it served last


_thread_state = _ThreadState()


class RequestExecutor(Executor):
    """Run one request's calls on the thread pool. Between calls it holds no thread, so a waiting stream blocks nobody."""

    def __init__(self, threads: LifoThreadPool) -> None:
        self._pool = threads

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return self._pool.submit(self._run, fn, *args, **kwargs)

    def _run(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if _thread_state.executor is not self:
            _thread_state.executor = self
            close_old_connections()  # check this thread's connection once per request
        return fn(*args, **kwargs)


class _RequestThreadContext(ThreadSensitiveContext):
    """Use the request's executor instead of a thread of its own; nested contexts reuse it.

    It is set even if a context exists: a kept-alive connection may carry the context of an earlier request into the
    next. Each call under an ended context would get a thread and a Postgres connection that are never closed.
    """

    def __init__(self, threads: LifoThreadPool) -> None:
        super().__init__()
        self._pool = threads

    async def __aenter__(self) -> Self:
        self.token = SyncToAsync.thread_sensitive_context.set(self)
        SyncToAsync.context_to_thread_executor[self] = RequestExecutor(self._pool)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.token is not None
        SyncToAsync.thread_sensitive_context.reset(
            self.token
        )  # the executor is released with its last holder


class ThreadPoolMiddleware:
    """Wrap all HTTP requests; sockets use the threads of config.core.db."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        at_door = scope["path"].startswith(WEBHOOK_PATH_PREFIX)
        async with _RequestThreadContext(_webhook_threads if at_door else _web_threads):
            await self._application(scope, receive, send)


class SingleHopASGIHandler(ASGIHandler):
    def __init__(self) -> None:
        super().__init__()
        self._sync_handler, self._webhook_handler = _SyncHandler(), _WebhookSyncHandler()
        self._sync_handler.load_middleware()
        self._webhook_handler.load_middleware()
        # Signal handlers that would cross to a thread before each request; RequestExecutor checks the connection
        # itself.
        for receiver in (reset_queries, close_old_connections):
            request_started.disconnect(receiver)

    def create_request(
        self, scope: Mapping[str, Any], body_file: IO[bytes]
    ) -> tuple[ASGIRequest, None] | tuple[None, HttpResponseBase]:
        """Refuse a Content-Type that Django cannot read; it answers such requests with a server error."""
        try:
            return super().create_request(scope, body_file)
        except ValueError:
            return None, HttpResponseBadRequest("400 Bad Request: the Content-Type cannot be read.")

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        if _has_async_view(request):
            return await super().get_response_async(request)
        handler = (
            self._webhook_handler if request.path_info.startswith(WEBHOOK_PATH_PREFIX) else self._sync_handler
        )
        return await sync_to_async(handler.get_response)(request)


class _SyncHandler(BaseHandler):
    """Run a synchronous view and all its middleware in one thread."""

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        return request.resolver_match or super().resolve_request(request)


class _WebhookSyncHandler(_SyncHandler):
    """Skip the middleware for cookies, language and pages: platform updates authenticate themselves and arrive by the
    hundred per second.
    """

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware()
        self._view_middleware: list[object] = []
        chain: Any = convert_exception_to_response(self._get_response)  # type: ignore[attr-defined]  # not in its stubs
        for middleware in (api_errors, request_id):
            chain = convert_exception_to_response(middleware(chain))
        self._middleware_chain = chain


def _has_async_view(request: HttpRequest) -> bool:
    """Return True for a coroutine view; a stream would hold a thread for as long as it lasts."""
    try:
        request.resolver_match = resolve(request.path_info)
    except Resolver404:
        return False
    return iscoroutinefunction(request.resolver_match.func)
