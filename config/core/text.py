"""Clean text for storage, find time zones by name, and mark texts for translation without importing Django."""

from __future__ import annotations

from functools import cache
from zoneinfo import ZoneInfo, available_timezones


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
