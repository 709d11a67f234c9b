"""Whether and when a delivery that was not taken is tried again (L17)."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

DELAYS_SECONDS = (10, 30, 120, 600, 1800, 7200, 21_600)  # after the first try, the second, …
LONGEST_SECONDS = 21_600
JITTER = 0.2
AGAIN = frozenset({408, 425, 429})
GONE = 410


def may_be_tried_again(status: int | None) -> bool:
    """None: nobody answered. Redirects are not followed, and other refusals are meant."""
    return status is None or status in AGAIN or status >= 500


def delay_seconds(
    attempts: int, *, retry_after: str = "", now: datetime | None = None, chance: float | None = None
) -> float | None:
    """How long to wait after so many tries; None: that was the last. `chance` (0 to 1) spreads the crowd."""
    if attempts > len(DELAYS_SECONDS):
        return None
    spread = 1 + JITTER * (2 * (random.random() if chance is None else chance) - 1)  # noqa: S311 - no secret
    own = DELAYS_SECONDS[attempts - 1] * spread
    return min(LONGEST_SECONDS * (1 + JITTER), max(own, _asked_for(retry_after, now or datetime.now(UTC))))


def _asked_for(retry_after: str, now: datetime) -> float:
    """Seconds or a date, honoured up to six hours; anything else says nothing."""
    if retry_after.isdecimal() and len(retry_after) < 10:
        return float(min(int(retry_after), LONGEST_SECONDS))
    try:
        moment = parsedate_to_datetime(retry_after)
    except (
        ValueError,
        TypeError,
        OverflowError,
    ):  # a stranger's words: a year or an offset beyond all numbers
        return 0.0
    seconds = (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds()
    return min(max(0.0, seconds), float(LONGEST_SECONDS))
