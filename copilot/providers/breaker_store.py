"""Count model failures in Redis for all workers. An outage of Redis opens no circuit breaker."""

from __future__ import annotations

from uuid import uuid4

import structlog

from config.core.redis import REDIS_OUTAGE_ERRORS, get_redis, get_script
from copilot.realtime import redis_keys

log = structlog.get_logger(__name__)


def count_model_failure(model: str, code: str, *, failures: int, seconds: int) -> bool:
    try:
        opened = get_script("count_breaker_failure")(
            keys=[redis_keys.model_failures_key(model), redis_keys.OPEN_BREAKERS_KEY],
            args=[str(uuid4()), model, code, failures, seconds, seconds],
        )
    except REDIS_OUTAGE_ERRORS:
        log.warning("model_failure_not_counted", model=model, code=code)
        return False
    return bool(opened)


def list_open_breakers() -> dict[str, tuple[str, float]]:
    try:
        with get_redis().pipeline(transaction=False) as pipeline:
            pipeline.time()
            pipeline.hgetall(redis_keys.OPEN_BREAKERS_KEY)
            (seconds, microseconds), found = pipeline.execute()
    except REDIS_OUTAGE_ERRORS:
        return {}
    now = seconds + microseconds / 1_000_000
    trips = {name.decode(): value.decode().partition(" ") for name, value in found.items()}
    left = {name: (code, float(until) - now) for name, (until, _, code) in trips.items()}
    return {name: (code, seconds) for name, (code, seconds) in left.items() if seconds > 0}
