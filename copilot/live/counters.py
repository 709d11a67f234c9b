"""Fixed-window rate counters that fail open: a Redis that is away never keeps people out (T3.7)."""

from __future__ import annotations

import logging

from copilot.live import keys
from copilot.live.client import RedisDown, script

log = logging.getLogger(__name__)


def hit(name: str, who: str, *, limit: int, seconds: int) -> int | None:
    """Count one call; the seconds to wait when it is one too many, else None. Refused calls count too."""
    try:
        count, left = script("count")(keys=[keys.counter(name, who)], args=[seconds])
    except RedisDown:
        log.warning("rate counter %s is unreachable: letting the call through", name)
        return None
    return max(1, left) if count > limit else None


def give_back(name: str, who: str) -> None:
    """One call is not counted after all; the window stays as it is."""
    try:
        script("uncount")(keys=[keys.counter(name, who)])
    except RedisDown:
        log.warning("rate counter %s is unreachable: a call stays counted", name)
