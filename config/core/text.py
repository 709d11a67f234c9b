"""Marks texts for translators where they are written down; they are translated where they are shown."""

from __future__ import annotations


def make_storable(text: str) -> str:
    """Text that a row and a socket can carry: no NUL, no half of a surrogate pair."""
    if "\x00" in text:
        text = text.replace("\x00", "")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def gettext_noop(text: str) -> str:
    """The text itself: Django's own marker would bring the framework along. Import it as `_`, which the gathering looks for."""
    return text
