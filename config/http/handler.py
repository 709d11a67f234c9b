"""The ASGI handler of HTTP requests and the middleware around it: static files, request headers, threads."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from typing import IO, Any, ParamSpec, Self, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, iscoroutinefunction, sync_to_async
from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    HTTPScope,
    Scope,
    WebSocketScope,
)
from django.conf import settings
from django.contrib.staticfiles.storage import HashedFilesMixin
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.core.handlers.base import BaseHandler
from django.core.handlers.exception import convert_exception_to_response
from django.core.signals import request_started
from django.db import close_old_connections, reset_queries
from django.http import HttpRequest, HttpResponseBadRequest
from django.http.response import HttpResponseBase
from django.urls import Resolver404, ResolverMatch, resolve
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import Redirect, StaticFile
from whitenoise.storage import CompressedManifestStaticFilesStorage

from config.core.db import LifoThreadPool
from config.middleware import api_errors, request_id

_, _IMPORT_PATTERNS = HashedFilesMixin._js_module_import_aggregation_patterns  # type: ignore[attr-defined]


class ModuleStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Rewrite `import "./turn.js"` to the hashed name in our modules only; comments in vendored files can look like
    imports.
    """

    support_js_module_import_aggregation = True
    _js_module_import_aggregation_patterns = ("js/*.js", _IMPORT_PATTERNS)


class StaticFilesMiddleware:
    """ASGI middleware that serves static files, so that the forty files of a page skip Django's middleware.

    The files are small and in the system's cache; reading one is faster than handing it to a thread.
    """

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application
        self._files = WhiteNoiseMiddleware()

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        found = self._find_file(scope["path"])
        if found is None:
            await self._application(scope, receive, send)
            return
        answer = found.get_response(scope["method"], _convert_headers_to_wsgi(scope["headers"]))
        body = b""
        if answer.file is not None:
            with answer.file as file:
                body = file.read()
        headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
        headers.append((b"x-content-type-options", b"nosniff"))
        await send(
            {
                "type": "http.response.start",
                "status": int(answer.status),
                "headers": headers,
                "trailers": False,
            }
        )
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _find_file(self, path: str) -> StaticFile | Redirect | None:
        """Find a file, searching again each time in development (WHITENOISE_AUTOREFRESH)."""
        if not path.startswith(self._files.static_prefix):
            return None
        return self._files.find_file(path) if self._files.autorefresh else self._files.files.get(path)


def _convert_headers_to_wsgi(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {
        f"HTTP_{name.decode('latin1').upper().replace('-', '_')}": value.decode("latin1")
        for name, value in headers
    }


REQUEST_ID_HEADER = b"x-request-id"
PROXY_ONLY_HEADERS = (
    REQUEST_ID_HEADER,
    b"traceparent",
    b"tracestate",
)  # and every header that starts with x-forwarded-

MAX_HEADER_BYTES = 32 * 1024  # of all headers; browsers send one or two
MAX_TARGET_BYTES = 16 * 1024  # of the path with its query
# The standard library takes quadratic time for escapes in quoted cookies: 64 KB of them blocked a process for 8 s.
MAX_COOKIE_ESCAPES = 400

_REQUEST_ID_PATTERN = re.compile(rb"[A-Za-z0-9-]{8,64}")
Headers = Iterable[tuple[bytes, bytes]]


class RequestHeadersMiddleware:
    """Outermost ASGI middleware; `proxies` are the addresses or networks of trusted proxies."""

    def __init__(self, application: ASGI3Application, *, proxies: str) -> None:
        forwarded = ProxyHeadersMiddleware(application, proxies)  # type: ignore[arg-type]
        self._proxies = forwarded.trusted_hosts if proxies else ()
        self._application: ASGI3Application = forwarded if proxies else application  # type: ignore[assignment]

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        if (status := _find_refusal_status(scope)) is not None:
            await _send_refusal(scope, status, send)
            return
        client = scope.get("client")
        if (client[0] if client else None) not in self._proxies:
            scope["headers"] = [one for one in scope["headers"] if not _is_proxy_only(one[0])]
        if scope["type"] == "http":
            send = _add_request_id(scope, send)
        await self._application(scope, receive, send)


def _find_refusal_status(scope: HTTPScope | WebSocketScope) -> int | None:
    """Return the status for a request whose head is too costly to parse, before it is parsed."""
    if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > MAX_TARGET_BYTES:
        return 414
    total = escapes = 0
    for name, value in scope["headers"]:
        total += len(name) + len(value)
        if name == b"cookie":
            escapes += value.count(b"\\")
    return 431 if total > MAX_HEADER_BYTES or escapes > MAX_COOKIE_ESCAPES else None


async def _send_refusal(scope: HTTPScope | WebSocketScope, status: int, send: ASGISendCallable) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": None})
        return
    what = "The address is too long." if status == 414 else "The request headers are too large."
    body = json.dumps({"error": {"code": "too_large", "message": what}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        (REQUEST_ID_HEADER, uuid.uuid4().hex.encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _is_proxy_only(name: bytes) -> bool:
    return name in PROXY_ONLY_HEADERS or name.startswith(b"x-forwarded-")


def _add_request_id(scope: HTTPScope, send: ASGISendCallable) -> ASGISendCallable:
    """Bind the request's id, taken over or new, and add it to the response."""
    given = next((value for name, value in scope["headers"] if name == REQUEST_ID_HEADER), b"")
    request_id = given if _REQUEST_ID_PATTERN.fullmatch(given) else uuid.uuid4().hex.encode()
    others = [one for one in scope["headers"] if one[0] != REQUEST_ID_HEADER]
    scope["headers"] = [*others, (REQUEST_ID_HEADER, request_id)]

    async def tell(event: ASGISendEvent) -> None:
        if event["type"] == "http.response.start":
            event["headers"] = [*event.get("headers", ()), (REQUEST_ID_HEADER, request_id)]
        await send(event)

    return tell


CORS_PATHS = ("/v1/", "/api/")
CORS_MAX_AGE_SECONDS = 600
CORS_EXPOSED_HEADERS = b"retry-after, x-request-id, x-vercel-ai-ui-message-stream"
_HEADER_LIST_PATTERN = re.compile(rb"[A-Za-z0-9_, -]{0,1000}")


class CorsMiddleware:
    """ASGI middleware that lets pages of allowed origins call the APIs with a key, never with cookies."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        if not settings.CORS_ALLOWED_ORIGINS or not scope["path"].startswith(CORS_PATHS):
            await self._application(scope, receive, send)
            return
        headers = dict(scope["headers"])
        allowed = _find_cors_headers(headers.get(b"origin", b""))
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await _answer_preflight(allowed, headers, send)
            return

        async def send_with_headers(event: ASGISendEvent) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [*event.get("headers", ()), *allowed]
            await send(event)

        await self._application(scope, receive, send_with_headers)


def _find_cors_headers(origin: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers for an allowed origin; others get none, and their browser refuses the answer."""
    vary = (b"vary", b"Origin")
    if "*" in settings.CORS_ALLOWED_ORIGINS:
        granted = b"*"
    elif origin.decode("latin1") in settings.CORS_ALLOWED_ORIGINS:
        granted = origin
    else:
        return [vary]
    return [
        (b"access-control-allow-origin", granted),
        (b"access-control-expose-headers", CORS_EXPOSED_HEADERS),
        vary,
    ]


async def _answer_preflight(
    allowed: list[tuple[bytes, bytes]], asked: Mapping[bytes, bytes], send: ASGISendCallable
) -> None:
    names = asked.get(b"access-control-request-headers", b"")
    headers = [*allowed, (b"content-length", b"0")]
    if len(allowed) > 1 and _HEADER_LIST_PATTERN.fullmatch(names):
        headers += [
            (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
            (b"access-control-allow-headers", names),
            (b"access-control-max-age", str(CORS_MAX_AGE_SECONDS).encode()),
        ]
    await send({"type": "http.response.start", "status": 204, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


P = ParamSpec("P")
R = TypeVar("R")

WEBHOOK_THREADS = 32  # of chat platforms; they share one connection to Postgres
_web_threads = LifoThreadPool(settings.WEB_THREADS, "web")
_webhook_threads = LifoThreadPool(
    WEBHOOK_THREADS, "door"
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
