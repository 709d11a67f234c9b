"""The outermost door: what only a proxy of ours may say is believed of nobody else, and every answer bears its request's id (D19)."""

from __future__ import annotations

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
)
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

REQUEST_ID = b"x-request-id"
FROM_PROXIES = (REQUEST_ID, b"traceparent", b"tracestate")  # and all that begins with x-forwarded-

_ID = re.compile(rb"[A-Za-z0-9-]{8,64}")
Headers = Iterable[tuple[bytes, bytes]]


class Arrivals:
    """An ASGI application around all others; `proxies` are addresses or networks, none if nothing stands in front."""

    def __init__(self, application: ASGI3Application, *, proxies: str) -> None:
        forwarded = ProxyHeadersMiddleware(application, proxies)  # type: ignore[arg-type]
        self._proxies = forwarded.trusted_hosts if proxies else ()
        self._application: ASGI3Application = forwarded if proxies else application  # type: ignore[assignment]

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        client = scope.get("client")
        if (client[0] if client else None) not in self._proxies:
            scope["headers"] = [one for one in scope["headers"] if not _is_for_proxies(one[0])]
        if scope["type"] == "http":
            send = _named(scope, send)
        await self._application(scope, receive, send)


def _is_for_proxies(name: bytes) -> bool:
    return name in FROM_PROXIES or name.startswith(b"x-forwarded-")


def _named(scope: HTTPScope, send: ASGISendCallable) -> ASGISendCallable:
    """The request under its id, whoever made that, and a way back that tells it."""
    given = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
    request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex.encode()
    others = [one for one in scope["headers"] if one[0] != REQUEST_ID]
    scope["headers"] = [*others, (REQUEST_ID, request_id)]

    async def tell(event: ASGISendEvent) -> None:
        if event["type"] == "http.response.start":
            event["headers"] = [*event.get("headers", ()), (REQUEST_ID, request_id)]
        await send(event)

    return tell
