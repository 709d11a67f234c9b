"""Clean text for storage, find time zones by name, and mark texts for translation without importing Django."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import Literal
from urllib.parse import quote
from zoneinfo import ZoneInfo, available_timezones

MAX_NAME_BYTES = 255
MAX_ARCHIVE_NAME_BYTES = 150
DEFAULT_FILENAME = "file"
_BIDIRECTIONAL_MARKS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_FORBIDDEN_CHARACTERS = frozenset('/\\:*?"<>|')  # on some system that may unpack the archive
_WINDOWS_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789\u00b9\u00b2\u00b3"]
)

Disposition = Literal["attachment", "inline"]


def clean_filename(raw: str) -> str:
    """Return a safe name: one path segment, harmless characters, at most 255 bytes."""
    kept = "".join(
        _replace_unsafe(character) for character in unicodedata.normalize("NFC", get_basename(raw))
    )
    name = _shorten_to_bytes(kept.strip())
    return DEFAULT_FILENAME if name in {"", ".", ".."} else name


def get_basename(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2].strip()


def build_content_disposition(disposition: Disposition, name: str) -> str:
    """Build a Content-Disposition value whose name can neither end its quotes nor begin a header."""
    clean = "".join(
        "_" if character == "/" else character for character in name if not _is_unprintable(character)
    )
    clean = clean or DEFAULT_FILENAME
    fallback = "".join(character if character.isascii() else "_" for character in clean)
    quoted = fallback.replace("\\", "\\\\").replace('"', '\\"')
    value = f'{disposition}; filename="{quoted}"'
    return value if clean.isascii() else f"{value}; filename*=UTF-8''{quote(clean, safe='')}"


def make_unique_archive_names(raw: Iterable[str], *, taken: Iterable[str] = ()) -> list[str]:
    """Return names that are safe on every system and unique within one archive folder."""
    used = {_fold_case(name) for name in taken}
    names: list[str] = []
    for name in raw:
        unique = _make_unique(clean_archive_name(name), used)
        used.add(_fold_case(unique))
        names.append(unique)
    return names


def clean_archive_name(raw: str) -> str:
    """Remove paths, characters that any system forbids, and Windows device names."""
    kept = (
        "_" if character in _FORBIDDEN_CHARACTERS else character
        for character in unicodedata.normalize("NFC", get_basename(raw))
        if not unicodedata.category(character).startswith("C")
    )
    name = _shorten_to_bytes("".join(kept).lstrip(". ").rstrip(". "), MAX_ARCHIVE_NAME_BYTES).rstrip(". ")
    if name.partition(".")[0].strip().lower() in _WINDOWS_DEVICES:
        name = _shorten_to_bytes(f"_{name}", MAX_ARCHIVE_NAME_BYTES)
    return name or DEFAULT_FILENAME


def build_archive_filename(title: str) -> str:
    """Name an archive after its title; a slash in it creates no folder."""
    flat = title.replace("/", "_").replace("\\", "_")
    return f"{clean_archive_name(flat)}-files.zip"


def _make_unique(name: str, used: set[str]) -> str:
    """Return the name itself, or `name (2).ext`, `name (3).ext` and so on."""
    stem, dot, extension = name.rpartition(".")
    if not stem:
        stem, dot, extension = name, "", ""
    candidate, number = name, 1
    while _fold_case(candidate) in used:
        number += 1
        ending = f" ({number}){dot}{extension}"
        room = MAX_ARCHIVE_NAME_BYTES - len(ending.encode())
        candidate = stem.encode()[:room].decode(errors="ignore").rstrip(". ") + ending
    return candidate


def _fold_case(name: str) -> str:
    """Return the form under which case-insensitive systems compare names."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _replace_unsafe(character: str) -> str:
    category = unicodedata.category(character)
    if category.startswith("C"):  # control, bidirectional and other invisible characters, lone surrogates
        return ""
    # Marks belong to the letters before them: without them most Indian names would be lost.
    return character if character.isalnum() or character in "._- " or category.startswith("M") else "_"


def _is_unprintable(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cs"} or character in _BIDIRECTIONAL_MARKS


def _shorten_to_bytes(name: str, most_bytes: int = MAX_NAME_BYTES) -> str:
    """Keep the extension, because it decides between text types."""
    if len(name.encode()) <= most_bytes:
        return name
    stem, dot, extension = name.rpartition(".")
    if not stem or len(extension.encode()) > 20:  # not a real extension
        stem, dot, extension = name, "", ""
    room = most_bytes - len((dot + extension).encode())
    return stem.encode()[:room].decode(errors="ignore").rstrip() + dot + extension


def make_storable(text: str) -> str:
    """Remove what rows and sockets cannot carry: NUL and lone surrogates."""
    if "\x00" in text:
        text = text.replace("\x00", "")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def gettext_noop(text: str) -> str:
    """Return the text itself, without importing Django. Import it as `_`, which makemessages looks for."""
    return text


def find_time_zone(name: str) -> ZoneInfo | None:
    """Return the zone that a person, a model or a browser named, or None if there is none.

    `ZoneInfo` reads files and imports packages by the name it is given: a long one with dots ends in a RecursionError,
    others in three kinds of errors. Only names of the time zone database are passed on to it.
    """
    return ZoneInfo(name) if name in _list_zone_names() else None


@cache
def _list_zone_names() -> frozenset[str]:
    return frozenset(available_timezones())
