"""The only responses that carry a file, and the headers that keep its content harmless (S6, S7)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import IO

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from copilot.models import WorkspaceFile
from copilot.names import header_value
from copilot.workspace import files, sniffing
from copilot.workspace.storage import CHUNK_BYTES

_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif")
_MEDIA = (
    "audio/mpeg",
    "audio/ogg",
    "audio/wav",
    "audio/flac",
    "audio/mp4",
    "video/mp4",
    "video/webm",
    "video/ogg",
)
_ACTIVE = ("text/html", "text/javascript", "application/xhtml+xml", "application/xml")

_CLOSED = "default-src 'none'; sandbox; frame-ancestors 'self'"
_VIEWER = (
    f"{_CLOSED}; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'"  # the browser's own viewer
)
_FRAMED = "frame-ancestors 'self'"  # browsers refuse to show a PDF in a sandbox
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, kw_only=True)
class Handling:
    """How one group of S7's table is sent."""

    content_type: str
    policy: str
    inline: bool = False
    ranges: bool = False


def handling(mime: str) -> Handling:
    """S7's table; what it does not name is sent as unknown bytes to be saved."""
    if mime in _IMAGES:
        return Handling(content_type=mime, policy=_VIEWER, inline=True)
    if mime in _MEDIA:
        return Handling(content_type=mime, policy=_VIEWER, inline=True, ranges=True)
    if mime == "application/pdf":
        return Handling(content_type=mime, policy=_FRAMED, inline=True, ranges=True)
    if mime == "image/svg+xml":
        return Handling(content_type=mime, policy=_CLOSED)
    if sniffing.is_text(mime) and mime not in _ACTIVE:
        return Handling(content_type="text/plain; charset=utf-8", policy=_CLOSED, inline=True)
    return Handling(content_type=sniffing.UNKNOWN, policy=_CLOSED)


def respond(request: HttpRequest, file: WorkspaceFile, *, inline: bool = False) -> HttpResponseBase:
    """The file as this request may have it; the caller has checked that its sender may have it at all."""
    how = handling(file.mime)
    tag = f'"{file.sha256}"'
    if tag in request.headers.get("If-None-Match", ""):
        return _dressed(HttpResponse(status=304), file, how, inline)
    asked = _asked(request, how, tag)
    part = _part(asked, file.size_bytes)
    if asked and part is None:
        refusal = HttpResponse(status=416, headers={"Content-Range": f"bytes */{file.size_bytes}"})
        return _dressed(refusal, file, how, inline)
    start, end = part or (0, file.size_bytes)
    response = FileStream(files.open(file), start, end, status=206 if part else 200)
    response["Content-Length"] = str(end - start)
    if part:
        response["Content-Range"] = f"bytes {start}-{end - 1}/{file.size_bytes}"
    return _dressed(response, file, how, inline)


class FileStream(StreamingHttpResponse):
    """A part of an open file in chunks; under ASGI each is read off the loop."""

    def __init__(self, stream: IO[bytes], start: int, end: int, *, status: int) -> None:
        super().__init__(_Chunks(stream, start, end), status=status)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = iter(self)
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            yield part


class _Chunks:
    """An iterator that the response can close whether or not it was ever begun."""

    def __init__(self, stream: IO[bytes], start: int, end: int) -> None:
        self._stream = stream
        self._left = end - start
        self.close = stream.close
        stream.seek(start)

    def __iter__(self) -> _Chunks:
        return self

    def __next__(self) -> bytes:
        chunk = self._stream.read(min(CHUNK_BYTES, self._left))
        if not chunk:
            raise StopIteration
        self._left -= len(chunk)
        return chunk


def _asked(request: HttpRequest, how: Handling, tag: str) -> str:
    """The one range asked for; several at once, or of an older version, are answered with the whole file."""
    asked = request.headers.get("Range", "").replace(" ", "")
    applies = how.ranges and asked.startswith("bytes=") and "," not in asked
    return asked if applies and request.headers.get("If-Range", tag) == tag else ""


def _part(asked: str, size: int) -> tuple[int, int] | None:
    """Start and end of the bytes asked for; None when there are none such."""
    match = _RANGE.fullmatch(asked)
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:  # the last so many bytes
        start, end = max(size - int(last), 0), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
    return (start, end) if start < end else None


def _dressed(
    response: HttpResponseBase, file: WorkspaceFile, how: Handling, inline: bool
) -> HttpResponseBase:
    response["Content-Type"] = how.content_type
    response["Content-Disposition"] = header_value(
        "inline" if inline and how.inline else "attachment", file.name
    )
    response["ETag"] = f'"{file.sha256}"'
    response["Cache-Control"] = "private, no-cache"
    response["X-Content-Type-Options"] = "nosniff"
    response["Cross-Origin-Resource-Policy"] = "same-origin"
    response["Referrer-Policy"] = "no-referrer"
    response["X-Frame-Options"] = "SAMEORIGIN"
    response["Content-Security-Policy"] = how.policy
    if how.ranges:
        response["Accept-Ranges"] = "bytes"
    return response
