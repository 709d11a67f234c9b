"""Outermost ASGI layer: trust forwarded headers only from our proxies, and give every response a request id."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable

from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    HTTPScope,
    Scope,
    WebSocketScope,
)
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

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
