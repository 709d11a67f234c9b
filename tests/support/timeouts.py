"""Time limits for waits: a machine under load is slow, never wrong."""

from __future__ import annotations

from types import ModuleType

PATIENCE_SECONDS = 40.0  # well below pytest's own limit for a whole test
LIMITS = ("CONNECT_TIMEOUT_SECONDS", "RESPONSE_TIMEOUT_SECONDS", "ANSWER_TIMEOUT_SECONDS")
shipped: dict[str, float] = {}  # by module and name: time limits of the product itself


def with_servers() -> None:
    """Raise time limits, so that a slow server does not count as down; a refused connection is still noticed at once."""
    from django.db import connection

    from billing import redis_counters
    from config.core import redis
    from copilot.worker import health
    from diagnostics import broker_queues

    for module in (redis_counters, redis, broker_queues, health):
        with_those_of(module)
    connection.settings_dict["OPTIONS"]["connect_timeout"] = int(PATIENCE_SECONDS)


def with_those_of(module: ModuleType) -> None:
    for name in LIMITS:
        if hasattr(module, name):
            shipped.setdefault(f"{module.__name__}.{name}", getattr(module, name))
            setattr(module, name, PATIENCE_SECONDS)
