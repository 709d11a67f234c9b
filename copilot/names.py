"""What files may be called: in the workspace, and in a response header (S4, S6, A22.3)."""

from __future__ import annotations

import unicodedata
from typing import Literal
from urllib.parse import quote

MAX_NAME_BYTES = 255
NAMELESS = "file"
_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

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


def _harmless(character: str) -> str:
    category = unicodedata.category(character)
    if category.startswith("C"):  # control, bidirectional and other invisible characters, lone surrogates
        return ""
    # Marks belong to the letters before them: without them most Indian names would be lost.
    return character if character.isalnum() or character in "._- " or category.startswith("M") else "_"


def _unprintable(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cs"} or character in _BIDIRECTIONAL


def _shortened(name: str) -> str:
    """At most 255 bytes; the extension stays, because it chooses among text types."""
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    stem, dot, extension = name.rpartition(".")
    if not stem or len(extension.encode()) > 20:  # no extension anybody would know
        stem, dot, extension = name, "", ""
    room = MAX_NAME_BYTES - len((dot + extension).encode())
    return stem.encode()[:room].decode(errors="ignore").rstrip() + dot + extension
