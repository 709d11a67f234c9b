"""Build the responses that carry a file, with headers that keep its content harmless."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import IO

import structlog
from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from config.core.errors import StorageUnavailable
from config.core.text import build_content_disposition
from copilot import metrics
from copilot.files import content_types, storage
from copilot.files import services as files
from copilot.files.storage import CHUNK_BYTES
from copilot.models import WorkspaceFile

log = structlog.get_logger(__name__)

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
# Lets the browser's own viewer show images and media.
_VIEWER_CSP = f"{_CLOSED_CSP}; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'"
_FRAMED_CSP = "frame-ancestors 'self'"  # browsers refuse to show a PDF in a sandbox
_RANGE_HEADER = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, kw_only=True)
class DownloadPolicy:
    """Headers and options for one group of content types."""

    content_type: str
    policy: str
    inline: bool = False
    ranges: bool = False


ARCHIVE_POLICY = DownloadPolicy(content_type="application/zip", policy=_CLOSED_CSP)


def get_download_policy(mime: str) -> DownloadPolicy:
    """Return the policy of a type. Types that are not listed are sent as unknown bytes to be saved."""
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
    file: WorkspaceFile
    how: DownloadPolicy
    disposition: str
    public: bool

    @property
    def etag(self) -> str:
        return f'"{self.file.sha256}"'

    @property
    def can_redirect_to_storage(self) -> bool:
        """Return False for what a frame shows or our script reads: those must stay on our origin."""
        if self.file.mime == _PDF_TYPE:
            return self.disposition.startswith("attachment")
        return (
            not content_types.is_text(self.file.mime) or self.file.size_bytes > settings.ARTIFACT_RENDER_MAX
        )

    def record_bytes(self, route: str, size: int) -> None:
        """Count and log who sends the file and how much, but never its name."""
        metrics.bytes_served.labels(route).inc(size)
        log.info("file_sent", file_id=str(self.file.id), route=route, size_bytes=size)

    def set_headers(self, response: HttpResponseBase) -> HttpResponseBase:
        response["ETag"] = self.etag
        if self.how.ranges:
            response["Accept-Ranges"] = "bytes"
        return set_download_headers(response, self.how, self.disposition, public=self.public)


def build_download_response(
    request: HttpRequest, file: WorkspaceFile, *, inline: bool = False, public: bool = False
) -> HttpResponseBase:
    """Build the response for a file. The caller has checked that the sender may have it."""
    files.check_scan(file)
    how = get_download_policy(file.mime)
    disposition = build_content_disposition("inline" if inline and how.inline else "attachment", file.name)
    download = _Download(file=file, how=how, disposition=disposition, public=public)
    if download.etag in request.headers.get("If-None-Match", ""):
        return download.set_headers(HttpResponse(status=304))
    if request.method == "HEAD":  # a URL signed for GET would refuse it
        return download.set_headers(HttpResponse(headers={"Content-Length": str(file.size_bytes)}))
    return download.set_headers(_send_file(request, download))


def set_download_headers(
    response: HttpResponseBase, how: DownloadPolicy, disposition: str, *, public: bool = False
) -> HttpResponseBase:
    response["Content-Type"] = how.content_type
    response["Content-Disposition"] = disposition
    response["Cache-Control"] = "private, no-cache"
    response["X-Content-Type-Options"] = "nosniff"
    response["Cross-Origin-Resource-Policy"] = "same-site" if public else "same-origin"
    response["Referrer-Policy"] = "no-referrer"
    response["X-Frame-Options"] = "SAMEORIGIN"
    response["Content-Security-Policy"] = how.policy
    return response


# --- Routes ------------------------------------------------------------------------------------------


def _send_file(request: HttpRequest, download: _Download) -> HttpResponseBase:
    """Redirect to the storage if possible; otherwise let the proxy or this process send the file."""
    signing_problem: OSError | None = None
    if download.can_redirect_to_storage:
        try:
            if (response := _redirect_to_storage(download)) is not None:
                return response
        except OSError as problem:
            signing_problem = problem
    try:
        return _hand_to_proxy(download) or _stream_file(request, download)
    except StorageUnavailable as problem:
        log.error(
            "file_unreadable",
            file_id=str(download.file.id),
            signing=repr(signing_problem),
            reading=repr(problem.__cause__),
        )
        raise


def _redirect_to_storage(download: _Download) -> HttpResponseBase | None:
    url = storage.make_signed_url(
        download.file.storage_key, content_type=download.how.content_type, disposition=download.disposition
    )
    if url is None:
        return None
    download.record_bytes("storage", download.file.size_bytes)
    return HttpResponse(status=302, headers={"Location": url})


def _hand_to_proxy(download: _Download) -> HttpResponseBase | None:
    path = storage.get_accelerated_path(download.file.storage_key)
    if path is None:
        return None
    download.record_bytes("proxy", download.file.size_bytes)
    return HttpResponse(headers={"X-Accel-Redirect": path})


def _stream_file(request: HttpRequest, download: _Download) -> HttpResponseBase:
    size = download.file.size_bytes
    requested = _get_requested_range(request, download.how, download.etag)
    part = _parse_range(requested, size)
    if requested and part is None:
        return HttpResponse(status=416, headers={"Content-Range": f"bytes */{size}"})
    start, end = part or (0, size)
    response = ChunkedResponse(
        _FileChunks(files.open_file(download.file), start, end), status=206 if part else 200
    )
    download.record_bytes("app", end - start)
    response["Content-Length"] = str(end - start)
    if part:
        response["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return response


def build_document_response(name: str, mime: str, content: bytes) -> HttpResponseBase:
    """Build the response for a document that was made just now, to be saved under this name."""
    response = HttpResponse(content)
    response["Content-Length"] = str(len(content))
    return set_download_headers(
        response, get_download_policy(mime), build_content_disposition("attachment", name)
    )


class ChunkedResponse(StreamingHttpResponse):
    """Stream content in chunks; under ASGI each is read in a thread."""

    def __init__(self, chunks: Iterator[bytes], *, status: int = 200) -> None:
        super().__init__(chunks, status=status)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = iter(self)
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            yield part


class _FileChunks(Iterator[bytes]):
    """Read a part of an open file; the response can close it even before it was started.

    The first chunk is read at once, so that a failing storage raises before the response has begun.
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
    """Return the one requested range. Several ranges, or one of an older version, get the whole file."""
    requested = request.headers.get("Range", "").replace(" ", "")
    applies = how.ranges and requested.startswith("bytes=") and "," not in requested
    return requested if applies and request.headers.get("If-Range", tag) == tag else ""


def _parse_range(requested: str, size: int) -> tuple[int, int] | None:
    match = _RANGE_HEADER.fullmatch(requested)
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:  # a suffix range
        start, end = max(size - int(last), 0), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
    return (start, end) if start < end else None
