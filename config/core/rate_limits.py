"""Rate limit counters that fail open: while Redis is away, nothing is refused."""

from __future__ import annotations

import time
from typing import Protocol

import structlog
from django.core.cache import caches

from config.core.errors import ServiceUnavailable
from config.core.redis import KEY_PREFIX, REDIS_OUTAGE_ERRORS, get_script


def rate_limit_key(name: str, who: str) -> str:
    return f"{KEY_PREFIX}:count:{name}:{{{who}}}"


log = structlog.get_logger(__name__)


def count_request(name: str, who: str, *, limit: int, seconds: int) -> int | None:
    """Count one call, refused ones too. Return the seconds to wait if it exceeds the limit, else None."""
    try:
        count, left = get_script("count_request")(keys=[rate_limit_key(name, who)], args=[seconds])
    except REDIS_OUTAGE_ERRORS:
        log.warning("rate_limit_not_checked", limit=name)
        return None
    return max(1, left) if count > limit else None


def uncount_request(name: str, who: str) -> None:
    """Take back one counted call; the window stays as it is."""
    try:
        get_script("uncount_request")(keys=[rate_limit_key(name, who)])
    except REDIS_OUTAGE_ERRORS:
        log.warning("rate_limit_not_refunded", limit=name)


class WallClock(Protocol):
    def __call__(self) -> float: ...


def count_in_sliding_window(
    name: str, who: str, *, limit: int, seconds: int, clock: WallClock = time.time
) -> int | None:
    """Count one call. Return the seconds to wait if it exceeds the limit, else None.

    The window slides over two counters, so that a boundary does not allow twice the limit.
    """
    now = clock()
    number = int(now // seconds)
    gone = now / seconds - number
    wait = max(1, int(seconds * (1 - gone)) + 1)
    earlier, present = (f"{name}:{who}:{one}" for one in (number - 1, number))
    try:
        counts = caches["shared"].get_many([earlier, present])
        weighed = int(counts.get(earlier, 0)) * (1 - gone)
        if int(counts.get(present, 0)) + weighed >= limit:
            return wait
        count = _increment_count(present, 2 * seconds, known=present in counts)
    except ServiceUnavailable:
        log.warning("rate_limit_not_checked", limit=name)
        return None
    return wait if count + weighed > limit else None


def is_first_in_window(name: str, who: str, *, seconds: int) -> bool:
    """Return True for the first call in the window, and False while Redis cannot tell."""
    try:
        return bool(caches["shared"].add(f"{name}:{who}", 1, seconds))
    except ServiceUnavailable:
        return False


def _increment_count(key: str, seconds: int, *, known: bool) -> int:
    """Count correctly even if two processes start the counter at once: the loser's `add` fails and it increments."""
    if not known and caches["shared"].add(key, 1, seconds):
        return 1
    try:
        return int(caches["shared"].incr(key))
    except ValueError:  # Redis was just emptied, and the counter with it
        return 1
