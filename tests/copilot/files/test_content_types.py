"""What a file is, judged by its bytes (S4, A29.2)."""

from __future__ import annotations

import pytest

from copilot.files.content_types import HEAD_BYTES, detect_content_type, detect_image_type, is_text

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 32
WEBP = b"RIFF\x24\0\0\0WEBPVP8 "
WAVE = b"RIFF\x24\0\0\0WAVEfmt "


@pytest.mark.parametrize(
    ("head", "name", "mime"),
    [
        (PNG, "photo.jpg", "image/png"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "x", "image/jpeg"),
        (WEBP, "x.webp", "image/webp"),
        (WAVE, "sound.webp", "audio/wav"),
        (b"\0\0\0\x20ftypavif", "x", "image/avif"),
        (b"\0\0\0\x20ftypisom", "x", "video/mp4"),
        (b"\0\0\0\x20ftypqt  ", "x.mp4", "application/octet-stream"),
        (b"%PDF-1.7\n<html>", "x.html", "application/pdf"),
        (b"<html><body>hi", "invoice.pdf", "text/html"),
        (b"<!DOCTYPE html>", "picture.png", "text/html"),
        (b"\xef\xbb\xbf  \n<ScRiPt>alert(1)</script>", "x.txt", "text/html"),
        (b"<!-- c --><svg xmlns='http://www.w3.org/2000/svg'>", "x.png", "image/svg+xml"),
        (b"<?xml version='1.0'?>\n<svg>", "x.txt", "image/svg+xml"),
        (b"<?xml version='1.0'?>\n<feed>", "x.txt", "application/xml"),
        (b"<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'>", "x", "application/xhtml+xml"),
        (b"<!--ftypisom--><script>", "movie.mp4", "text/html"),
        (b"<unknown>", "x.txt", "application/xml"),
        (b"a,b\n1,2\n", "table.csv", "text/csv"),
        (b"# Title", "notes.MD", "text/markdown"),
        (b"alert(1)", "x.js", "text/javascript"),
        (b"plain words", "picture.png", "text/plain"),
        (b"", "empty.txt", "text/plain"),
        (b"GIF89a=1;alert(1)", "x.js", "image/gif"),
        (b"text with \0 inside", "x.txt", "application/octet-stream"),
        (b"caf\xe9", "latin1.txt", "application/octet-stream"),
        ("<html>".encode("utf-16"), "x.html", "application/octet-stream"),
    ],
)
def test_content_decides_what_a_file_is(head: bytes, name: str, mime: str) -> None:
    """S4, A22.c1, A29.c1, A-S4.3"""
    assert detect_content_type(head, name) == mime


def test_a_character_cut_by_the_head_is_no_reason_to_doubt() -> None:
    """S4"""
    head = ("x" * (HEAD_BYTES - 1) + "é").encode()[:HEAD_BYTES]
    assert detect_content_type(head, "x.txt") == "text/plain"


def test_only_four_kinds_are_native_images() -> None:
    """A29.2"""
    assert detect_image_type(PNG) == "image/png"
    assert detect_image_type(WEBP) == "image/webp"
    assert detect_image_type(WAVE) is None
    assert detect_image_type(b"RIFF....") is None
    assert detect_image_type(b"BM....") is None
    assert detect_image_type(b"<svg>") is None


def test_json_and_source_code_are_text_and_zips_are_not() -> None:
    """S7"""
    assert is_text("application/json")
    assert is_text("text/x-python")
    assert not is_text("application/zip")
