"""Mark texts for translation without importing Django, and clean text for storage."""

from __future__ import annotations


def make_storable(text: str) -> str:
    """Remove what rows and sockets cannot carry: NUL and lone surrogates."""
    if "\x00" in text:
        text = text.replace("\x00", "")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def gettext_noop(text: str) -> str:
    """Return the text itself, without importing Django. Import it as `_`, which makemessages looks for."""
    return text
