"""The only responses that carry a file, and the headers that keep its content harmless (S5–S7)."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import IO

from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from copilot import metrics
from copilot.errors import StorageUnavailable
from copilot.models import WorkspaceFile
from copilot.names import header_value
from copilot.workspace import files, sniffing, storage
from copilot.workspace.storage import CHUNK_BYTES

_log = logging.getLogger(__name__)

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
_PDF = "application/pdf"

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


ARCHIVE = Handling(content_type="application/zip", policy=_CLOSED)


def handling(mime: str) -> Handling:
    """S7's table; what it does not name is sent as unknown bytes to be saved."""
    if mime in _IMAGES:
        return Handling(content_type=mime, policy=_VIEWER, inline=True)
    if mime in _MEDIA:
        return Handling(content_type=mime, policy=_VIEWER, inline=True, ranges=True)
    if mime == _PDF:
        return Handling(content_type=mime, policy=_FRAMED, inline=True, ranges=True)
    if mime == "image/svg+xml":
        return Handling(content_type=mime, policy=_CLOSED)
    if sniffing.is_text(mime) and mime not in _ACTIVE:
        return Handling(content_type="text/plain; charset=utf-8", policy=_CLOSED, inline=True)
    return Handling(content_type=sniffing.UNKNOWN, policy=_CLOSED)


@dataclass(frozen=True, kw_only=True)
class _Sending:
    """One file on its way to one caller."""

    file: WorkspaceFile
    how: Handling
    disposition: str
    public: bool

    @property
    def tag(self) -> str:
        return f'"{self.file.sha256}"'

    @property
    def may_be_fetched_elsewhere(self) -> bool:
        """Not what a frame shows or our script reads: those stay on our own origin (S5)."""
        if self.file.mime == _PDF:
            return self.disposition.startswith("attachment")
        return not sniffing.is_text(self.file.mime) or self.file.size_bytes > settings.ARTIFACT_RENDER_MAX

    def count(self, road: str, size: int) -> None:
        """Who sends it, and how much: never what it is called (S19)."""
        metrics.bytes_served.labels(road).inc(size)
        _log.info("file %s leaves by %s: %d bytes", self.file.id, road, size)

    def dressed(self, response: HttpResponseBase) -> HttpResponseBase:
        response["ETag"] = self.tag
        if self.how.ranges:
            response["Accept-Ranges"] = "bytes"
        return dressed(response, self.how, self.disposition, public=self.public)


def respond(
    request: HttpRequest, file: WorkspaceFile, *, inline: bool = False, public: bool = False
) -> HttpResponseBase:
    """The file as this request may have it; the caller has checked that its sender may have it at all."""
    files.check_scan(file)
    how = handling(file.mime)
    disposition = header_value("inline" if inline and how.inline else "attachment", file.name)
    sending = _Sending(file=file, how=how, disposition=disposition, public=public)
    if sending.tag in request.headers.get("If-None-Match", ""):
        return sending.dressed(HttpResponse(status=304))
    if request.method == "HEAD":  # an address signed for GET would refuse it
        return sending.dressed(HttpResponse(headers={"Content-Length": str(file.size_bytes)}))
    return sending.dressed(_sent(request, sending))


def dressed(
    response: HttpResponseBase, how: Handling, disposition: str, *, public: bool = False
) -> HttpResponseBase:
    """What every response with somebody's content bears (S7)."""
    response["Content-Type"] = how.content_type
    response["Content-Disposition"] = disposition
    response["Cache-Control"] = "private, no-cache"
    response["X-Content-Type-Options"] = "nosniff"
    response["Cross-Origin-Resource-Policy"] = "same-site" if public else "same-origin"
    response["Referrer-Policy"] = "no-referrer"
    response["X-Frame-Options"] = "SAMEORIGIN"
    response["Content-Security-Policy"] = how.policy
    return response


# --- the roads a file can take -----------------------------------------------------------------------


def _sent(request: HttpRequest, sending: _Sending) -> HttpResponseBase:
    """Fetched from the storage itself if it can be, else sent by a proxy or by us; 503 before anything is begun."""
    unsigned: OSError | None = None
    if sending.may_be_fetched_elsewhere:
        try:
            if (response := _redirected(sending)) is not None:
                return response
        except OSError as problem:
            unsigned = problem
    try:
        return _accelerated(sending) or _streamed(request, sending)
    except StorageUnavailable as problem:
        _log.error(
            "file %s cannot be fetched; signing: %r; reading: %r",
            sending.file.id,
            unsigned,
            problem.__cause__,
        )
        raise


def _redirected(sending: _Sending) -> HttpResponseBase | None:
    url = storage.signed_url(
        sending.file.storage_key, content_type=sending.how.content_type, disposition=sending.disposition
    )
    if url is None:
        return None
    sending.count("storage", sending.file.size_bytes)
    return HttpResponse(status=302, headers={"Location": url})


def _accelerated(sending: _Sending) -> HttpResponseBase | None:
    path = storage.accelerated_path(sending.file.storage_key)
    if path is None:
        return None
    sending.count("proxy", sending.file.size_bytes)
    return HttpResponse(headers={"X-Accel-Redirect": path})


def _streamed(request: HttpRequest, sending: _Sending) -> HttpResponseBase:
    size = sending.file.size_bytes
    asked = _asked(request, sending.how, sending.tag)
    part = _part(asked, size)
    if asked and part is None:
        return HttpResponse(status=416, headers={"Content-Range": f"bytes */{size}"})
    start, end = part or (0, size)
    response = Streamed(_Chunks(files.open(sending.file), start, end), status=206 if part else 200)
    sending.count("app", end - start)
    response["Content-Length"] = str(end - start)
    if part:
        response["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return response


def document(name: str, mime: str, content: bytes) -> HttpResponseBase:
    """What was made just now, to be saved under this name."""
    response = HttpResponse(content)
    response["Content-Length"] = str(len(content))
    return dressed(response, handling(mime), header_value("attachment", name))


class Streamed(StreamingHttpResponse):
    """Content in chunks; under ASGI each is read off the loop."""

    def __init__(self, chunks: Iterator[bytes], *, status: int = 200) -> None:
        super().__init__(chunks, status=status)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = iter(self)
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            yield part


class _Chunks(Iterator[bytes]):
    """A part of an open file; the response can close it whether or not it was ever begun.

    The first chunk is read at once: a storage that fails does so before the response has begun (A-S5.1).
    """

    def __init__(self, stream: IO[bytes], start: int, end: int) -> None:
        self._stream = stream
        self._left = end - start
        self.close = stream.close
        try:
            stream.seek(start)
            self._first = self._read()
        except OSError as problem:
            stream.close()
            raise StorageUnavailable from problem

    def __next__(self) -> bytes:
        chunk, self._first = self._first or self._read(), b""
        if not chunk:
            raise StopIteration
        return chunk

    def _read(self) -> bytes:
        chunk = self._stream.read(min(CHUNK_BYTES, self._left))
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
