"""What files may be called: in the workspace, in a response header and in an archive (S4, S6, S13, A22.3)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Literal
from urllib.parse import quote

MAX_NAME_BYTES = 255
MAX_ENTRY_BYTES = 150
NAMELESS = "file"
_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_FORBIDDEN = frozenset('/\\:*?"<>|')  # on some system that may unpack it
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789\u00b9\u00b2\u00b3"]
)

Disposition = Literal["attachment", "inline"]


def stored_name(raw: str) -> str:
    """The name a file is kept under: one path part, harmless characters, at most 255 bytes."""
    kept = "".join(_harmless(character) for character in unicodedata.normalize("NFC", last_part(raw)))
    name = _shortened(kept.strip())
    return NAMELESS if name in {"", ".", ".."} else name


def last_part(path: str) -> str:
    """What follows the last slash of either kind."""
    return path.replace("\\", "/").rpartition("/")[2].strip()


def header_value(disposition: Disposition, name: str) -> str:
    """The value of Content-Disposition; the name can neither end its quotes nor begin a header."""
    clean = "".join(
        "_" if character == "/" else character for character in name if not _unprintable(character)
    )
    clean = clean or NAMELESS
    fallback = "".join(character if character.isascii() else "_" for character in clean)
    quoted = fallback.replace("\\", "\\\\").replace('"', '\\"')
    value = f'{disposition}; filename="{quoted}"'
    return value if clean.isascii() else f"{value}; filename*=UTF-8''{quote(clean, safe='')}"


def entry_names(raw: Iterable[str], *, taken: Iterable[str] = ()) -> list[str]:
    """Names for one folder of an archive: safe wherever it is unpacked, and no two the same there."""
    used = {_same_file(name) for name in taken}
    names: list[str] = []
    for name in raw:
        unique = _unique(entry_name(name), used)
        used.add(_same_file(unique))
        names.append(unique)
    return names


def entry_name(raw: str) -> str:
    """One name in an archive: no path, no character that any system forbids, no device of Windows."""
    kept = (
        "_" if character in _FORBIDDEN else character
        for character in unicodedata.normalize("NFC", last_part(raw))
        if not unicodedata.category(character).startswith("C")
    )
    name = _shortened("".join(kept).lstrip(". ").rstrip(". "), MAX_ENTRY_BYTES).rstrip(". ")
    if name.partition(".")[0].strip().lower() in _DEVICES:
        name = _shortened(f"_{name}", MAX_ENTRY_BYTES)
    return name or NAMELESS


def archive_name(title: str) -> str:
    """What an archive of somebody's files is called; a slash in a title parts no folders."""
    flat = title.replace("/", "_").replace("\\", "_")
    return f"{entry_name(flat)}-files.zip"


def _unique(name: str, used: set[str]) -> str:
    """The name itself, or `name (2).ext`, `name (3).ext` …"""
    stem, dot, extension = name.rpartition(".")
    if not stem:
        stem, dot, extension = name, "", ""
    candidate, number = name, 1
    while _same_file(candidate) in used:
        number += 1
        ending = f" ({number}){dot}{extension}"
        room = MAX_ENTRY_BYTES - len(ending.encode())
        candidate = stem.encode()[:room].decode(errors="ignore").rstrip(". ") + ending
    return candidate


def _same_file(name: str) -> str:
    """What a system that knows no case takes for one name."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _harmless(character: str) -> str:
    category = unicodedata.category(character)
    if category.startswith("C"):  # control, bidirectional and other invisible characters, lone surrogates
        return ""
    # Marks belong to the letters before them: without them most Indian names would be lost.
    return character if character.isalnum() or character in "._- " or category.startswith("M") else "_"


def _unprintable(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cs"} or character in _BIDIRECTIONAL


def _shortened(name: str, most_bytes: int = MAX_NAME_BYTES) -> str:
    """The extension stays, because it chooses among text types."""
    if len(name.encode()) <= most_bytes:
        return name
    stem, dot, extension = name.rpartition(".")
    if not stem or len(extension.encode()) > 20:  # no extension anybody would know
        stem, dot, extension = name, "", ""
    room = most_bytes - len((dot + extension).encode())
    return stem.encode()[:room].decode(errors="ignore").rstrip() + dot + extension
