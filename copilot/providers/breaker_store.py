"""Failures of models, counted over all workers; a Redis that is away opens no breaker (A7.7)."""

from __future__ import annotations

import logging
from uuid import uuid4

from config.core.redis import REDIS_OUTAGE_ERRORS, get_redis, get_script
from copilot.realtime import redis_keys

log = logging.getLogger(__name__)


def count_model_failure(model: str, why: str, *, failures: int, seconds: int) -> bool:
    """Note a failure of `model`; whether it was the one too many."""
    try:
        opened = get_script("trip")(
            keys=[redis_keys.model_failures_key(model), redis_keys.OPEN_BREAKERS_KEY],
            args=[str(uuid4()), model, why, failures, seconds, seconds],
        )
    except REDIS_OUTAGE_ERRORS:
        log.warning("a model's failure could not be counted: Redis is away")
        return False
    return bool(opened)


def list_open_breakers() -> dict[str, tuple[str, float]]:
    """Each model whose breaker is open: why, and for how many seconds more."""
    try:
        with get_redis().pipeline(transaction=False) as both:
            both.time()
            both.hgetall(redis_keys.OPEN_BREAKERS_KEY)
            (seconds, microseconds), found = both.execute()
    except REDIS_OUTAGE_ERRORS:
        return {}
    now = seconds + microseconds / 1_000_000
    trips = {name.decode(): value.decode().partition(" ") for name, value in found.items()}
    left = {name: (why, float(until) - now) for name, (until, _, why) in trips.items()}
    return {name: (why, seconds) for name, (why, seconds) in left.items() if seconds > 0}
