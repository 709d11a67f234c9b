"""Detect the type of a file by its first bytes; its name only chooses among kinds of text."""

from __future__ import annotations

import codecs
import re

HEAD_BYTES = 8192
MAX_IMAGE_BYTES = 20 * 1024 * 1024
NATIVE_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
UNKNOWN_TYPE = "application/octet-stream"
PLAIN_TEXT_TYPE = "text/plain"

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"\x00asm", "application/wasm"),
    (b"PK\x03\x04", "application/zip"),
    (b"PK\x05\x06", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_BRANDS = {b"avif": "image/avif", b"avis": "image/avif", b"M4A ": "audio/mp4", b"M4B ": "audio/mp4"}
_VIDEO_BRANDS = frozenset(
    {b"isom", b"iso2", b"iso4", b"iso5", b"iso6", b"mp41", b"mp42", b"avc1", b"M4V ", b"dash"}
)

_HTML = re.compile(
    rb"<(?:!doctype\s+html|html|head|body|script|iframe|style|title|h[1-6]|div|font|table|a|br|p|b|img|meta|link|"
    rb"object|embed|form|input|span|ul|ol|li|details|center|base|template|video|audio)(?=[\s>/]|$)",
    re.IGNORECASE,
)
_MARKUP = re.compile(rb"<(?:[A-Za-z!?/])")
_COMMENT = re.compile(rb"\s*<!--.*?-->", re.DOTALL)
_TEXT_BY_EXTENSION = {
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "md": "text/markdown",
    "markdown": "text/markdown",
    "json": "application/json",
    "js": "text/javascript",
    "mjs": "text/javascript",
    "cjs": "text/javascript",
    "html": "text/html",
    "htm": "text/html",
    "xhtml": "application/xhtml+xml",
    "svg": "image/svg+xml",
    "xml": "application/xml",
    "css": "text/css",
    "py": "text/x-python",
    "ts": "text/x-typescript",
    "sh": "text/x-shellscript",
    "sql": "text/x-sql",
    "c": "text/x-c",
    "h": "text/x-c",
    "cpp": "text/x-c++",
    "java": "text/x-java",
    "go": "text/x-go",
    "rs": "text/x-rust",
    "rb": "text/x-ruby",
    "php": "text/x-php",
    "toml": "application/toml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
}
_TEXT_TYPES = frozenset(_TEXT_BY_EXTENSION.values())


def detect_content_type(head: bytes, name: str) -> str:
    """Return the type of a file that begins with `head`. Markup is checked first, so that it cannot pass for media."""
    return _detect_markup(head) or _detect_binary(head) or _detect_text(head, name)


def detect_image_type(content: bytes) -> str | None:
    found = _detect_binary(content[:HEAD_BYTES])
    return found if found in NATIVE_IMAGES else None


def is_native_image(mime: str, size_bytes: int) -> bool:
    return mime in NATIVE_IMAGES and 0 < size_bytes <= MAX_IMAGE_BYTES


def is_text(mime: str) -> bool:
    return mime.startswith("text/") or mime in _TEXT_TYPES


def _detect_markup(head: bytes) -> str | None:
    start = head.removeprefix(codecs.BOM_UTF8).lstrip(b"\t\n\x0c\r ")
    if not _MARKUP.match(start):
        return None
    declared = start.startswith(b"<?xml")
    lowered = start.lower()
    while comment := _COMMENT.match(start):
        start = start[comment.end() :].lstrip()
    if (
        start[:4].lower() == b"<svg"
        or lowered.startswith(b"<!doctype svg")
        or (declared and b"<svg" in lowered)
    ):
        return "image/svg+xml"
    if declared:
        return "application/xhtml+xml" if b"<html" in lowered else "application/xml"
    return "text/html" if _HTML.match(start) or lowered.startswith(b"<!--") else "application/xml"


def _detect_binary(head: bytes) -> str | None:
    for magic, mime in _MAGIC:
        if head.startswith(magic):
            return mime
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12], UNKNOWN_TYPE)
    if head[:4] == b"OggS":
        return "video/ogg" if b"theora" in head[:200] else "audio/ogg"
    if head[:4] == b"\x1aE\xdf\xa3":
        return "video/webm" if b"webm" in head[:64] else "video/x-matroska"
    if head[4:8] == b"ftyp":
        brand = head[8:12]
        return _BRANDS.get(brand, "video/mp4" if brand in _VIDEO_BRANDS else UNKNOWN_TYPE)
    return None


def _detect_text(head: bytes, name: str) -> str:
    if b"\0" in head or not _is_utf8(head):
        return UNKNOWN_TYPE
    _, dot, extension = name.rpartition(".")
    return _TEXT_BY_EXTENSION.get(extension.lower(), PLAIN_TEXT_TYPE) if dot else PLAIN_TEXT_TYPE


def _is_utf8(head: bytes) -> bool:
    """Return whether it is UTF-8. Only a full head may end in the middle of a character."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < HEAD_BYTES)
    except UnicodeDecodeError:
        return False
    return True
