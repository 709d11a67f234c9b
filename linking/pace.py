"""How often something may happen: short-lived counts in Django's cache, one for all processes (L1)."""

from __future__ import annotations

import logging
import time
from typing import Protocol

from django.core.cache import caches

from copilot.errors import Unavailable

log = logging.getLogger(__name__)


class Clock(Protocol):
    def __call__(self) -> float: ...


def hit(name: str, who: str, *, limit: int, seconds: int, clock: Clock = time.time) -> int | None:
    """Count one; the seconds to wait when it is one too many, else None. A Redis that is away keeps nobody out.

    A window slides over two counts, so that a boundary lets nobody through twice.
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
        count = _counted(present, 2 * seconds, known=present in counts)
    except Unavailable:
        log.warning("the count of %s is unreachable: letting it through", name)
        return None
    return wait if count + weighed > limit else None


def first(name: str, who: str, *, seconds: int) -> bool:
    """Whether this is the first in so many seconds; nothing is said twice when nobody can tell."""
    try:
        return bool(caches["shared"].add(f"{name}:{who}", 1, seconds))
    except Unavailable:
        return False


def _counted(key: str, seconds: int, *, known: bool) -> int:
    """Two processes that come first together are both counted: one of them adds, the other one's add fails."""
    if not known and caches["shared"].add(key, 1, seconds):
        return 1
    try:
        return int(caches["shared"].incr(key))
    except ValueError:  # Redis was emptied just now: so was the count
        return 1
