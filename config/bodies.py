"""Refuses request bodies over the cap while they arrive, before Django keeps them on disk (S4, E3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from asgiref.sync import sync_to_async
from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    HTTPScope,
    Scope,
)
from django.conf import settings

UPLOADS = "/api/v1/files"
IMPORTS = ("/api/v1/sessions/import", "/settings/account/import")
MEGABYTE = 2**20
FORM_BYTES = MEGABYTE  # what a form puts around a file


SENTENCES = {
    "unauthenticated": (401, "Valid credentials are needed."),
    "quota_exceeded": (409, "The workspace is full."),
}


class Room(Protocol):
    """What somebody may send at once."""

    @property
    def limit_bytes(self) -> int: ...
    @property
    def code(self) -> str: ...
    @property
    def figures(self) -> Mapping[str, object]: ...


@dataclass(frozen=True)
class Cap:
    """How long a body may be here, and what is said of a longer one."""

    limit_bytes: int
    code: str = "too_large"
    figures: Mapping[str, object] = field(default_factory=dict)

    @property
    def status(self) -> int:
        return SENTENCES.get(self.code, (413, ""))[0]

    def body(self) -> bytes:
        _, message = SENTENCES.get(
            self.code, (413, f"The request body may have {self.limit_bytes // MEGABYTE} MB.")
        )
        error = {"code": self.code, "message": message, "limit_bytes": self.limit_bytes, **self.figures}
        return json.dumps({"error": error}).encode()


class CappedBodies:
    """An ASGI application whose requests are as long as they may be; long uploads by who sends them."""

    def __init__(self, application: ASGI3Application, room_for: Callable[[Mapping[str, Any]], Room]) -> None:
        self._application = application
        self._room_for = sync_to_async(room_for)

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        cap = await self._cap(scope)
        if _claimed_bytes(scope) > cap.limit_bytes:
            await _refuse(cap, send)
            return
        body = _Counted(receive, cap)
        await self._application(scope, body.receive, send)
        if body.is_too_long():
            await _refuse(cap, send)

    async def _cap(self, scope: HTTPScope) -> Cap:
        """A short upload costs no look at its sender: it never reaches the disk before Django knows who it is."""
        cap = cap_of(scope["path"])
        claimed = _claimed_bytes(scope)
        short = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if not _is_upload(scope) or 0 < claimed <= short or claimed > cap.limit_bytes:
            return cap
        room = await self._room_for(scope)
        limit = min(cap.limit_bytes, max(room.limit_bytes + FORM_BYTES, short))
        return Cap(limit, code=room.code, figures=room.figures)


def _is_upload(scope: HTTPScope) -> bool:
    return scope["method"] == "POST" and scope["path"].rstrip("/") == UPLOADS


def cap_of(path: str) -> Cap:
    if path.rstrip("/") == UPLOADS:
        return Cap(settings.UPLOAD_BODY_MAX_BYTES, code="file_too_large")
    if path.rstrip("/") in IMPORTS:
        return Cap(settings.IMPORT_ZIP_MAX + FORM_BYTES, code="file_too_large")
    return Cap(settings.DATA_UPLOAD_MAX_MEMORY_SIZE)


def _claimed_bytes(scope: HTTPScope) -> int:
    """What the request says of itself; 0 for one that comes in pieces, which are counted."""
    claimed = dict(scope["headers"]).get(b"content-length", b"")
    return int(claimed) if claimed.isdigit() else 0


class _Counted:
    """A body while it arrives. Over its cap it looks as if the client had gone: Django throws away what it has,
    and answers nothing."""

    def __init__(self, receive: ASGIReceiveCallable, cap: Cap) -> None:
        self._receive = receive
        self._cap = cap
        self._arrived = 0

    def is_too_long(self) -> bool:
        return self._arrived > self._cap.limit_bytes

    async def receive(self) -> ASGIReceiveEvent:
        if self.is_too_long():
            return {"type": "http.disconnect"}
        event = await self._receive()
        if event["type"] == "http.request":
            self._arrived += len(event.get("body", b""))
        return {"type": "http.disconnect"} if self.is_too_long() else event


async def _refuse(cap: Cap, send: ASGISendCallable) -> None:
    """The connection ends with it: the rest of the body is nobody's."""
    body = cap.body()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": cap.status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": body, "more_body": False})
