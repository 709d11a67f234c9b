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

from config.core.errors import StorageUnavailable
from config.core.filenames import build_content_disposition
from copilot import metrics
from copilot.files import content_types, storage
from copilot.files import services as files
from copilot.files.storage import CHUNK_BYTES
from copilot.models import WorkspaceFile

_log = logging.getLogger(__name__)

_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif")
_MEDIA_TYPES = (
    "audio/mpeg",
    "audio/ogg",
    "audio/wav",
    "audio/flac",
    "audio/mp4",
    "video/mp4",
    "video/webm",
    "video/ogg",
)
_ACTIVE_TYPES = ("text/html", "text/javascript", "application/xhtml+xml", "application/xml")
_PDF_TYPE = "application/pdf"

_CLOSED_CSP = "default-src 'none'; sandbox; frame-ancestors 'self'"
_VIEWER_CSP = (
    f"{_CLOSED_CSP}; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'"  # the browser's own viewer
)
_FRAMED_CSP = "frame-ancestors 'self'"  # browsers refuse to show a PDF in a sandbox
_RANGE_HEADER = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, kw_only=True)
class DownloadPolicy:
    """How one group of S7's table is sent."""

    content_type: str
    policy: str
    inline: bool = False
    ranges: bool = False


ARCHIVE_POLICY = DownloadPolicy(content_type="application/zip", policy=_CLOSED_CSP)


def get_download_policy(mime: str) -> DownloadPolicy:
    """S7's table; what it does not name is sent as unknown bytes to be saved."""
    if mime in _IMAGE_TYPES:
        return DownloadPolicy(content_type=mime, policy=_VIEWER_CSP, inline=True)
    if mime in _MEDIA_TYPES:
        return DownloadPolicy(content_type=mime, policy=_VIEWER_CSP, inline=True, ranges=True)
    if mime == _PDF_TYPE:
        return DownloadPolicy(content_type=mime, policy=_FRAMED_CSP, inline=True, ranges=True)
    if mime == "image/svg+xml":
        return DownloadPolicy(content_type=mime, policy=_CLOSED_CSP)
    if content_types.is_text(mime) and mime not in _ACTIVE_TYPES:
        return DownloadPolicy(content_type="text/plain; charset=utf-8", policy=_CLOSED_CSP, inline=True)
    return DownloadPolicy(content_type=content_types.UNKNOWN_TYPE, policy=_CLOSED_CSP)


@dataclass(frozen=True, kw_only=True)
class _Download:
    """One file on its way to one caller."""

    file: WorkspaceFile
    how: DownloadPolicy
    disposition: str
    public: bool

    @property
    def etag(self) -> str:
        return f'"{self.file.sha256}"'

    @property
    def can_redirect_to_storage(self) -> bool:
        """Not what a frame shows or our script reads: those stay on our own origin (S5)."""
        if self.file.mime == _PDF_TYPE:
            return self.disposition.startswith("attachment")
        return (
            not content_types.is_text(self.file.mime) or self.file.size_bytes > settings.ARTIFACT_RENDER_MAX
        )

    def record_bytes(self, road: str, size: int) -> None:
        """Who sends it, and how much: never what it is called (S19)."""
        metrics.bytes_served.labels(road).inc(size)
        _log.info("file %s leaves by %s: %d bytes", self.file.id, road, size)

    def set_headers(self, response: HttpResponseBase) -> HttpResponseBase:
        response["ETag"] = self.etag
        if self.how.ranges:
            response["Accept-Ranges"] = "bytes"
        return set_download_headers(response, self.how, self.disposition, public=self.public)


def build_download_response(
    request: HttpRequest, file: WorkspaceFile, *, inline: bool = False, public: bool = False
) -> HttpResponseBase:
    """The file as this request may have it; the caller has checked that its sender may have it at all."""
    files.check_scan(file)
    how = get_download_policy(file.mime)
    disposition = build_content_disposition("inline" if inline and how.inline else "attachment", file.name)
    sending = _Download(file=file, how=how, disposition=disposition, public=public)
    if sending.etag in request.headers.get("If-None-Match", ""):
        return sending.set_headers(HttpResponse(status=304))
    if request.method == "HEAD":  # an address signed for GET would refuse it
        return sending.set_headers(HttpResponse(headers={"Content-Length": str(file.size_bytes)}))
    return sending.set_headers(_send_file(request, sending))


def set_download_headers(
    response: HttpResponseBase, how: DownloadPolicy, disposition: str, *, public: bool = False
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


def _send_file(request: HttpRequest, sending: _Download) -> HttpResponseBase:
    """Fetched from the storage itself if it can be, else sent by a proxy or by us; 503 before anything is begun."""
    unsigned: OSError | None = None
    if sending.can_redirect_to_storage:
        try:
            if (response := _redirect_to_storage(sending)) is not None:
                return response
        except OSError as problem:
            unsigned = problem
    try:
        return _hand_to_proxy(sending) or _stream_file(request, sending)
    except StorageUnavailable as problem:
        _log.error(
            "file %s cannot be fetched; signing: %r; reading: %r",
            sending.file.id,
            unsigned,
            problem.__cause__,
        )
        raise


def _redirect_to_storage(sending: _Download) -> HttpResponseBase | None:
    url = storage.make_signed_url(
        sending.file.storage_key, content_type=sending.how.content_type, disposition=sending.disposition
    )
    if url is None:
        return None
    sending.record_bytes("storage", sending.file.size_bytes)
    return HttpResponse(status=302, headers={"Location": url})


def _hand_to_proxy(sending: _Download) -> HttpResponseBase | None:
    path = storage.get_accelerated_path(sending.file.storage_key)
    if path is None:
        return None
    sending.record_bytes("proxy", sending.file.size_bytes)
    return HttpResponse(headers={"X-Accel-Redirect": path})


def _stream_file(request: HttpRequest, sending: _Download) -> HttpResponseBase:
    size = sending.file.size_bytes
    asked = _get_requested_range(request, sending.how, sending.etag)
    part = _parse_range(asked, size)
    if asked and part is None:
        return HttpResponse(status=416, headers={"Content-Range": f"bytes */{size}"})
    start, end = part or (0, size)
    response = ChunkedResponse(
        _FileChunks(files.open_file(sending.file), start, end), status=206 if part else 200
    )
    sending.record_bytes("app", end - start)
    response["Content-Length"] = str(end - start)
    if part:
        response["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return response


def build_document_response(name: str, mime: str, content: bytes) -> HttpResponseBase:
    """What was made just now, to be saved under this name."""
    response = HttpResponse(content)
    response["Content-Length"] = str(len(content))
    return set_download_headers(
        response, get_download_policy(mime), build_content_disposition("attachment", name)
    )


class ChunkedResponse(StreamingHttpResponse):
    """Content in chunks; under ASGI each is read off the loop."""

    def __init__(self, chunks: Iterator[bytes], *, status: int = 200) -> None:
        super().__init__(chunks, status=status)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = iter(self)
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            yield part


class _FileChunks(Iterator[bytes]):
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


def _get_requested_range(request: HttpRequest, how: DownloadPolicy, tag: str) -> str:
    """The one range asked for; several at once, or of an older version, are answered with the whole file."""
    asked = request.headers.get("Range", "").replace(" ", "")
    applies = how.ranges and asked.startswith("bytes=") and "," not in asked
    return asked if applies and request.headers.get("If-Range", tag) == tag else ""


def _parse_range(asked: str, size: int) -> tuple[int, int] | None:
    """Start and end of the bytes asked for; None when there are none such."""
    match = _RANGE_HEADER.fullmatch(asked)
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:  # the last so many bytes
        start, end = max(size - int(last), 0), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
    return (start, end) if start < end else None
