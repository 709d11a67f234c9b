"""Bound request bodies while they arrive, before Django keeps them: by length, speed, sender and process.

Django reads a whole body into memory or onto the disk before it authenticates the sender. Here a body without
credentials must be short, a slow body is cut off, and the bytes that a process holds are bounded in total, per account
and per address.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections import Counter
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

UPLOAD_PATH = "/api/v1/files"
IMPORT_PATHS = ("/api/v1/sessions/import", "/settings/account/import")
# Requests authenticated by a signature over the body or by a bot key, not by an account.
SIGNED_PATHS = ("/hooks/", "/api/v1/billing/stripe/webhook", "/api/bot/v1/")
COMPATIBLE_API_PATHS = ("/v1/", "/api/ai/")
KILOBYTE, MEGABYTE = 2**10, 2**20
COMPATIBLE_API_BODY_BYTES = 32 * MEGABYTE  # a whole conversation with its images
FORM_OVERHEAD_BYTES = MEGABYTE  # the parts of a form around its file
ANONYMOUS_BODY_BYTES = 64 * KILOBYTE  # without credentials: enough for forms and messages of the usual length
SIGNED_BODY_BYTES = MEGABYTE

FIRST_BYTE_GRACE_SECONDS = 20.0  # until the first byte; from then on a minimum speed applies
DISK_CHECK_INTERVAL_BYTES = 16 * MEGABYTE  # between two checks of the free disk space
RETRY_AFTER_SECONDS = 10


class BodyAllowance(Protocol):
    """The bytes that a sender may have in flight; `sender` is empty for anonymous requests."""

    @property
    def sender(self) -> str: ...
    @property
    def limit_bytes(self) -> int: ...
    @property
    def code(self) -> str: ...
    @property
    def figures(self) -> Mapping[str, object]: ...


@dataclass(frozen=True)
class BodyRefusal:
    status: int
    code: str
    message: str
    figures: Mapping[str, object] = field(default_factory=dict)
    retry_after_seconds: int | None = None

    def encode_json(self) -> bytes:
        error: dict[str, object] = {"code": self.code, "message": self.message, **self.figures}
        if self.retry_after_seconds is not None:
            error["retry_after_seconds"] = self.retry_after_seconds
        return json.dumps({"error": error}).encode()


UNAUTHENTICATED = BodyRefusal(401, "unauthenticated", "Valid credentials are needed.")
BODY_TOO_SLOW = BodyRefusal(408, "body_too_slow", "The request body came too slowly.")
UPLOADS_BUSY = BodyRefusal(
    503,
    "too_many_uploads",
    "Too much is being uploaded right now. Please try again soon.",
    retry_after_seconds=RETRY_AFTER_SECONDS,
)
TOO_MANY_UPLOADS = BodyRefusal(
    429,
    "too_many_uploads",
    "Too much is being uploaded at once. Wait for your other uploads to finish.",
    retry_after_seconds=RETRY_AFTER_SECONDS,
)


@dataclass(frozen=True)
class BodyLimit:
    """The maximum body size of a path, and the error code for larger bodies."""

    limit_bytes: int
    code: str = "too_large"
    figures: Mapping[str, object] = field(default_factory=dict)

    @property
    def refusal(self) -> BodyRefusal:
        if self.code == "unauthenticated":
            return UNAUTHENTICATED
        figures = {"limit_bytes": self.limit_bytes, **self.figures}
        if self.code == "quota_exceeded":
            return BodyRefusal(409, self.code, "The workspace is full.", figures)
        unit, name = (MEGABYTE, "MB") if self.limit_bytes >= MEGABYTE else (KILOBYTE, "KB")
        return BodyRefusal(
            413, self.code, f"The request body may have {self.limit_bytes // unit} {name}.", figures
        )


def get_body_limit(path: str) -> BodyLimit:
    if path.rstrip("/") == UPLOAD_PATH:
        return BodyLimit(settings.UPLOAD_BODY_MAX_BYTES, code="file_too_large")
    if path.rstrip("/") in IMPORT_PATHS:
        return BodyLimit(settings.IMPORT_ZIP_MAX + FORM_OVERHEAD_BYTES, code="file_too_large")
    if path.startswith(SIGNED_PATHS):
        return BodyLimit(SIGNED_BODY_BYTES)
    if path.startswith(COMPATIBLE_API_PATHS):
        return BodyLimit(COMPATIBLE_API_BODY_BYTES)
    return BodyLimit(settings.DATA_UPLOAD_MAX_MEMORY_SIZE)


class BodyBudget:
    """Count the bytes of bodies that this process holds until their requests end."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()  # by account or address
        self.authenticated_bytes = 0
        self.anonymous_bytes = 0

    def find_refusal(self, sender: str, address: str, size: int) -> BodyRefusal | None:
        """Return the reason why an account, or an address without one, may not send this many more bytes."""
        if sender:
            if self._held[sender] + size > settings.BODIES_PER_ACCOUNT_BYTES:
                return TOO_MANY_UPLOADS
            return UPLOADS_BUSY if self.authenticated_bytes + size > settings.BODIES_BYTES else None
        if self._held[address] + size > settings.BODIES_OF_STRANGERS_BYTES // 4:
            return TOO_MANY_UPLOADS
        return UPLOADS_BUSY if self.anonymous_bytes + size > settings.BODIES_OF_STRANGERS_BYTES else None

    def adjust(self, sender: str, address: str, size: int) -> None:
        name = sender or address
        self._held[name] += size
        if self._held[name] <= 0:
            del self._held[name]
        if sender:
            self.authenticated_bytes += size
        else:
            self.anonymous_bytes += size


BODY_BUDGET = BodyBudget()


class BodyLimitMiddleware:
    """ASGI middleware that bounds request bodies, long ones by their sender."""

    def __init__(
        self, application: ASGI3Application, room_for: Callable[[Mapping[str, Any]], BodyAllowance]
    ) -> None:
        self._application = application
        self._room_for = sync_to_async(room_for)

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        headers = dict(scope["headers"])
        if b"content-length" not in headers and b"transfer-encoding" not in headers:
            await self._application(scope, receive, send)  # HTTP defines no body for it
            return
        body = _IncomingBody(scope, receive, self._room_for, _get_declared_bytes(headers))
        try:
            refusal = await body.check_declared_length()
            if refusal is None:
                await self._application(scope, body.receive, send)
                refusal = body.refusal
            if refusal is not None:
                await _send_refusal(refusal, send)
        finally:
            body.release_budget()


def _get_declared_bytes(headers: Mapping[bytes, bytes]) -> int:
    """Return the declared Content-Length; 0 for chunked bodies, whose bytes are counted as they arrive."""
    claimed = headers.get(b"content-length", b"")
    return int(claimed) if claimed.isdigit() and len(claimed) < 20 else 0


class _IncomingBody:
    """A body while it arrives. After a refusal Django sees a disconnected client, drops the body and sends no response."""

    def __init__(
        self,
        scope: HTTPScope,
        receive: ASGIReceiveCallable,
        room_for: Callable[[HTTPScope], Any],
        claimed_bytes: int,
    ) -> None:
        self.refusal: BodyRefusal | None = None
        self._scope = scope
        self._receive = receive
        self._room_for = room_for
        self._declared_bytes = claimed_bytes
        self._limit = get_body_limit(scope["path"])
        self._is_signed = scope["path"].startswith(SIGNED_PATHS)
        client = scope.get("client")
        self._address = f"address:{client[0]}" if client else "address:"
        self._sender = ""
        self._arrived_bytes = 0
        self._is_complete = False
        self._began_at = asyncio.get_running_loop().time()
        self._next_disk_check_bytes = DISK_CHECK_INTERVAL_BYTES

    async def check_declared_length(self) -> BodyRefusal | None:
        """Check the declared length. A short body is accepted without looking at its sender."""
        if self._declared_bytes > self._limit.limit_bytes:
            return self._limit.refusal
        if self._declared_bytes > ANONYMOUS_BODY_BYTES and not self._is_signed:
            await self._find_sender()
            if self._declared_bytes > self._limit.limit_bytes:
                return self._limit.refusal
            if self._declared_bytes > DISK_CHECK_INTERVAL_BYTES and not _has_disk_space(self._declared_bytes):
                return UPLOADS_BUSY
        return BODY_BUDGET.find_refusal(self._sender, self._address, self._declared_bytes)

    async def receive(self) -> ASGIReceiveEvent:
        if self._is_complete:
            return await self._receive()
        if self.refusal is None:
            try:
                async with asyncio.timeout_at(self._deadline()):
                    event = await self._receive()
            except TimeoutError:
                self.refusal = BODY_TOO_SLOW
            else:
                if event["type"] != "http.request":
                    return event
                self.refusal = await self._check_chunk(len(event.get("body", b"")))
                if self.refusal is None:
                    self._mark_complete(event.get("more_body", False))
                    return event
        return {"type": "http.disconnect"}

    def _mark_complete(self, more_body: bool) -> None:
        """Stop counting a short body once it is complete, because its request may last as long as a stream."""
        self._is_complete = not more_body
        if self._is_complete and self._arrived_bytes <= ANONYMOUS_BODY_BYTES:
            self.release_budget()

    def release_budget(self) -> None:
        BODY_BUDGET.adjust(self._sender, self._address, -self._arrived_bytes)
        self._arrived_bytes = 0

    def _deadline(self) -> float:
        return (
            self._began_at + FIRST_BYTE_GRACE_SECONDS + self._arrived_bytes / settings.BODY_BYTES_PER_SECOND
        )

    async def _check_chunk(self, size: int) -> BodyRefusal | None:
        """Count a chunk. Above the short limit, authenticate the sender whatever length the request declared."""
        arrived = self._arrived_bytes + size
        if arrived > ANONYMOUS_BODY_BYTES and not self._sender and not self._is_signed:
            await self._find_sender()
        if arrived > self._limit.limit_bytes:
            return self._limit.refusal
        if arrived > self._next_disk_check_bytes:
            self._next_disk_check_bytes += DISK_CHECK_INTERVAL_BYTES
            if not _has_disk_space(DISK_CHECK_INTERVAL_BYTES):
                return UPLOADS_BUSY
        refusal = BODY_BUDGET.find_refusal(self._sender, self._address, size)
        if refusal is None:
            BODY_BUDGET.adjust(self._sender, self._address, size)
            self._arrived_bytes = arrived
        return refusal

    async def _find_sender(self) -> None:
        room: BodyAllowance = await self._room_for(self._scope)
        if not room.sender:
            self._limit = BodyLimit(ANONYMOUS_BODY_BYTES, code="unauthenticated")
            return
        BODY_BUDGET.adjust("", self._address, -self._arrived_bytes)
        self._sender = room.sender
        BODY_BUDGET.adjust(self._sender, self._address, self._arrived_bytes)
        if _is_upload(self._scope):
            limit = min(
                self._limit.limit_bytes,
                max(room.limit_bytes + FORM_OVERHEAD_BYTES, settings.DATA_UPLOAD_MAX_MEMORY_SIZE),
            )
            self._limit = BodyLimit(limit, code=room.code, figures=room.figures)


def _is_upload(scope: HTTPScope) -> bool:
    return scope["method"] == "POST" and scope["path"].rstrip("/") == UPLOAD_PATH


def _has_disk_space(size: int) -> bool:
    """Return True if the spool disk has room for this body with a reserve, since other processes write there too."""
    return shutil.disk_usage(tempfile.gettempdir()).free > settings.BODIES_LEAVE_FREE_BYTES + size


async def _send_refusal(refusal: BodyRefusal, send: ASGISendCallable) -> None:
    """Send the refusal and close the connection, because the rest of the body is not read."""
    body = refusal.encode_json()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if refusal.retry_after_seconds is not None:
        headers.append((b"retry-after", str(refusal.retry_after_seconds).encode()))
    await send(
        {"type": "http.response.start", "status": refusal.status, "headers": headers, "trailers": False}
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})
