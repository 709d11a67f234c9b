"""Failures of models, counted over all workers; a Redis that is away opens no breaker (A7.7)."""

from __future__ import annotations

import logging
from uuid import uuid4

from copilot.live import keys
from copilot.live.client import RedisDown, blocking, script

log = logging.getLogger(__name__)


def count(model: str, why: str, *, failures: int, seconds: int) -> bool:
    """Note a failure of `model`; whether it was the one too many."""
    try:
        opened = script("trip")(
            keys=[keys.failures(model), keys.BREAKERS],
            args=[str(uuid4()), model, why, failures, seconds, seconds],
        )
    except RedisDown:
        log.warning("a model's failure could not be counted: Redis is away")
        return False
    return bool(opened)


def open_now() -> dict[str, tuple[str, float]]:
    """Each model whose breaker is open: why, and for how many seconds more."""
    try:
        with blocking().pipeline(transaction=False) as both:
            both.time()
            both.hgetall(keys.BREAKERS)
            (seconds, microseconds), found = both.execute()
    except RedisDown:
        return {}
    now = seconds + microseconds / 1_000_000
    trips = {name.decode(): value.decode().partition(" ") for name, value in found.items()}
    left = {name: (why, float(until) - now) for name, (until, _, why) in trips.items()}
    return {name: (why, seconds) for name, (why, seconds) in left.items() if seconds > 0}
