"""Find time zones by names that people, models and browsers give.

`ZoneInfo` reads files and imports packages by the name it is given: a long one with dots ends in a RecursionError, others
in three kinds of errors. Only names of the database are let through to it.
"""

from __future__ import annotations

from functools import cache
from zoneinfo import ZoneInfo, available_timezones


def find_time_zone(name: str) -> ZoneInfo | None:
    """Return the zone of this name, or None if there is none."""
    return ZoneInfo(name) if name in _list_zone_names() else None


@cache
def _list_zone_names() -> frozenset[str]:
    return frozenset(available_timezones())
