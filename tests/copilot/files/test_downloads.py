"""File responses: what is sent, how, and with which headers (S5–S7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.test import RequestFactory

from config.core.errors import StorageUnavailable
from copilot.files import downloads
from copilot.files import services as files
from copilot.files.storage import CHUNK_BYTES
from copilot.models import WorkspaceFile
from tests.support import factories

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 32
PDF = b"%PDF-1.7\n" + bytes(range(256)) * 1000


def stored(content: bytes, name: str) -> WorkspaceFile:
    return files.store_file(factories.ada().pk, name=name, content=content, source="upload")


def fetch(file: WorkspaceFile, *, inline: bool = False, **headers: str) -> HttpResponseBase:
    request = RequestFactory().get(
        "/", headers={key.replace("_", "-"): value for key, value in headers.items()}
    )
    return downloads.build_download_response(request, file, inline=inline)


def body(response: HttpResponseBase) -> bytes:
    content = response.content if isinstance(response, HttpResponse) else b"".join(response)
    response.close()
    return content


@pytest.mark.django_db
def test_a_download_is_an_attachment_with_exact_length_and_tag() -> None:
    """S6, A-S6.1"""
    file = stored(b"hello", "report.txt")
    response = fetch(file)
    assert response["Content-Disposition"] == 'attachment; filename="report.txt"'
    assert response["Content-Length"] == "5"
    assert response["ETag"] == f'"{file.sha256}"'
    assert response["Cache-Control"] == "private, no-cache"
    assert body(response) == b"hello"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("content", "name", "content_type", "disposition"),
    [
        (PNG, "a.png", "image/png", "inline"),
        (b"ID3\x04", "a.mp3", "audio/mpeg", "inline"),
        (b"\0\0\0\x20ftypisom", "a.mp4", "video/mp4", "inline"),
        (b"%PDF-1.7", "a.pdf", "application/pdf", "inline"),
        (b"# Title", "a.md", "text/plain; charset=utf-8", "inline"),
        (b'{"a": 1}', "a.json", "text/plain; charset=utf-8", "inline"),
        (b"print(1)", "a.py", "text/plain; charset=utf-8", "inline"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "a.svg", "image/svg+xml", "attachment"),
        (b"<html>", "a.html", "application/octet-stream", "attachment"),
        (b"<html>", "a.pdf", "application/octet-stream", "attachment"),
        (b"<?xml version='1.0'?><a/>", "a.xml", "application/octet-stream", "attachment"),
        (b"alert(1)", "a.js", "application/octet-stream", "attachment"),
        (b"\x00asm\x01", "a.wasm", "application/octet-stream", "attachment"),
        (b"GIF89a=1;alert(1)", "a.js", "image/gif", "inline"),
        (b"%PDF-<html><script>", "a.html", "application/pdf", "inline"),
        (b"PK\x03\x04", "a.docx", "application/octet-stream", "attachment"),
        (b"\x80\x81", "a.txt", "application/octet-stream", "attachment"),
    ],
)
def test_inline_is_only_for_types_that_run_nothing(
    content: bytes, name: str, content_type: str, disposition: str
) -> None:
    """A-S7.1, A-S7.2, A-S7.3, A-S4.3"""
    response = fetch(stored(content, name), inline=True)
    assert response["Content-Type"] == content_type
    assert response["Content-Disposition"].startswith(f"{disposition};")
    assert response["X-Content-Type-Options"] == "nosniff"
    response.close()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("content", "sandboxed"), [(PNG, True), (b"text", True), (b"<html>", True), (PDF, False)]
)
def test_every_response_is_closed_in_by_its_headers(content: bytes, sandboxed: bool) -> None:
    """S7, A-S7.4: a PDF cannot be shown in a sandbox"""
    file = stored(content, "x")
    for response in (fetch(file), fetch(file, inline=True), fetch(file, If_None_Match=f'"{file.sha256}"')):
        assert response["X-Content-Type-Options"] == "nosniff"
        assert response["Cross-Origin-Resource-Policy"] == "same-origin"
        assert response["Referrer-Policy"] == "no-referrer"
        assert response["X-Frame-Options"] == "SAMEORIGIN"
        assert "frame-ancestors 'self'" in response["Content-Security-Policy"]
        assert ("sandbox" in response["Content-Security-Policy"]) is sandboxed
        response.close()


@pytest.mark.django_db
def test_a_copy_that_is_still_good_is_not_sent_again() -> None:
    """S6"""
    file = stored(b"hello", "x.txt")
    response = fetch(file, If_None_Match=f'"{file.sha256}"')
    assert (response.status_code, body(response)) == (304, b"")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-", 0, len(PDF)),
        ("bytes=5-9", 5, 10),
        ("bytes=-7", len(PDF) - 7, len(PDF)),
        ("bytes=9-99999999", 9, len(PDF)),
    ],
)
def test_a_part_of_a_pdf_can_be_asked_for(asked: str, start: int, end: int) -> None:
    """S5"""
    response = fetch(stored(PDF, "x.pdf"), Range=asked)
    assert response.status_code == 206
    assert response["Content-Range"] == f"bytes {start}-{end - 1}/{len(PDF)}"
    assert response["Content-Length"] == str(end - start)
    assert body(response) == PDF[start:end]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "asked", ["bytes=999999999-", "bytes=9-5", "bytes=-0", "bytes=-", "bytes=a-b", "bytes=" + "9" * 50 + "-"]
)
def test_a_range_that_is_not_there_is_416(asked: str) -> None:
    """S5"""
    response = fetch(stored(PDF, "x.pdf"), Range=asked)
    assert (response.status_code, response["Content-Range"]) == (416, f"bytes */{len(PDF)}")
    assert response["X-Content-Type-Options"] == "nosniff"


@pytest.mark.django_db
@pytest.mark.parametrize(
    "headers",
    [{"Range": "bytes=0-1,3-4"}, {"Range": "lines=1-2"}, {"Range": "bytes=1-2", "If_Range": '"old"'}],
)
def test_other_ranges_get_the_whole_file(headers: dict[str, Any]) -> None:
    """S5: one range, of this version"""
    response = fetch(stored(PDF, "x.pdf"), **headers)
    assert (response.status_code, body(response)) == (200, PDF)


@pytest.mark.django_db
def test_ranges_are_for_streamed_types_only() -> None:
    """S5"""
    response = fetch(stored(b"plain text", "x.txt"), Range="bytes=0-1")
    assert (response.status_code, body(response)) == (200, b"plain text")


@pytest.mark.django_db
def test_no_response_is_begun_when_the_object_is_missing() -> None:
    """A-S5.1"""
    file = stored(b"hello", "x.txt")
    file.storage_key = "ws/gone"
    with pytest.raises(StorageUnavailable):
        fetch(file)


@pytest.mark.django_db(transaction=True)
async def test_under_asgi_a_file_comes_in_chunks_and_is_closed() -> None:
    """S5"""
    from config.core.db import run_in_thread

    file = await run_in_thread(stored, PDF, "x.pdf")
    response = await run_in_thread(fetch, file)
    assert isinstance(response, downloads.ChunkedResponse)
    chunks = [chunk async for chunk in _parts(response)]
    assert b"".join(chunks) == PDF
    assert max(map(len, chunks)) <= CHUNK_BYTES
    response.close()
    with pytest.raises(ValueError, match="closed"):
        next(iter(response))


def _parts(response: downloads.ChunkedResponse) -> AsyncIterator[bytes]:
    return response.__aiter__()
