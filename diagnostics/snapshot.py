"""Read everything that the summary and the findings need, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from django.db import Error, connection

from config.core.errors import ServiceUnavailable
from copilot.chat import turn_selectors
from copilot.worker import health as worker_health
from diagnostics import aggregates, broker_queues, inventory, samples, schedules, turn_filters
from diagnostics.findings.figures import Snapshot, Summary
from diagnostics.findings.rules import MAX_FINDING_IDS
from diagnostics.queries import BackgroundQuery, CachedValue, accepts_writes, open_snapshot, wait_for_answer
from diagnostics.turn_filters import FilterContext
from diagnostics.work_ages import read_work_ages
from linking import selectors

CACHE_SECONDS = 5.0
BROKER_TIMEOUT_SECONDS = 1.0  # after this, its figures are left out
CONDITIONS_WITH_IDS = {  # conditions whose ids findings name, with the figures that count them
    "orphaned_running": "orphaned_running",
    "orphaned_queued": "orphaned_queued",
    "stuck_queued": "stuck_queued",
    "long_running": "long_running_24h",
    "long_running_1h": "long_running_1h",
    "cancel_backlog": "cancel_backlog",
    "invalid": "invalid_total",
}
T = TypeVar("T")


# --- The summary ---


def compute_summary() -> Summary:
    """Compute the summary now, without the cache. A source that fails is named and its figures are left out."""
    queues = _broker_query.start()
    degraded: list[str] = []
    figures: aggregates.Figures = {}
    now = datetime.now(UTC)
    try:
        with open_snapshot() as now:
            figures = aggregates.compute_figures(turn_filters.judge_running_turns(now))
    except Error:
        connection.close()
        degraded.append("postgres")
    waking = _none_if_unavailable(worker_health.get_wakeup_count)
    if waking is None:
        degraded.append("redis")
    depths = wait_for_answer(queues, seconds=BROKER_TIMEOUT_SECONDS)
    if depths is None:
        degraded.append("broker")
    return Summary(
        taken_at=now,
        degraded=tuple(sorted(degraded)),
        broker_depth=_sum_depths(depths, waking),
        broker_unacked=depths.unacked if depths else None,
        **figures,  # type: ignore[arg-type]  # the names match
    )


def _sum_depths(depths: broker_queues.QueueDepths | None, waking: int | None) -> Mapping[str, int] | None:
    """Add wake-ups, which are a queue beside the broker's."""
    if depths is None:
        return None
    by_queue = dict(depths.by_queue) if waking is None else {**depths.by_queue, "wakeups": waking}
    return {**by_queue, "total": sum(by_queue.values())}


def _none_if_unavailable(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except ServiceUnavailable:
        return None


_broker_query = BackgroundQuery(
    "broker depths", broker_queues.read_queue_depths, away=broker_queues.UNREACHABLE_ERRORS
)
_cached_summary = CachedValue(compute_summary, CACHE_SECONDS)


def get_summary() -> Summary:
    """Return the summary, at most five seconds old; concurrent callers share one computation."""
    return _cached_summary.get()


def get_stale_summary(*, seconds: float) -> Summary:
    """Return a summary up to `seconds` old without waiting, and renew it in the background."""
    return _cached_summary.get_stale(seconds=seconds)


# --- The snapshot ---


def get_snapshot() -> Snapshot:
    """Return the summary and what else findings need; sources that do not answer are left out.

    Workers are read more often than the rest: one that receives no turns must be a finding within ten seconds.
    """
    seen = _cached_snapshot.get()
    if seen.workers is None:
        return seen
    try:
        return replace(seen, workers=inventory.list_workers_for_findings())
    except Error:
        connection.close()
        return seen


def take_snapshot() -> Snapshot:
    figures = get_summary()
    down = tuple(name for name in figures.degraded)
    rows = {} if "postgres" in down else _read_postgres(figures)
    live = {} if "redis" in down else _read_redis(readable="postgres" not in down)
    return Snapshot(summary=figures, dependencies_down=down, **rows, **live)  # type: ignore[arg-type]


def _read_postgres(figures: Summary) -> dict[str, object]:
    try:
        with open_snapshot() as now:
            skew = time.time() - now.timestamp()  # measured at once, because what follows takes time
            moment = turn_filters.judge_running_turns(now)
            ids = {
                name: _list_ids(name, moment)
                for name, figure in CONDITIONS_WITH_IDS.items()
                if getattr(figures, figure) != 0  # a zero causes no finding that would name ids
            }
            ids["stranded_pending"] = tuple(
                str(session_id) for session_id in aggregates.find_stranded_sessions()[:MAX_FINDING_IDS]
            )
            waiting = selectors.get_backlogs()
        return {
            "ids": ids,
            "database_takes_writes": accepts_writes(),
            "database_skew_seconds": skew,
            "workers": inventory.list_workers_for_findings(),
            "orphaned_schedules": schedules.get_schedule_summary().orphaned_total,
            "queue_depths": samples.get_recent_values("queued", 5),
            "update_backlog": waiting.updates_waiting,
            "delivery_backlog": waiting.deliveries_waiting,
        }
    except Error:
        connection.close()
        return {}


def _list_ids(name: str, moment: FilterContext) -> tuple[str, ...]:
    rows = turn_selectors.all_turns().filter(turn_filters.TURN_FILTERS[name](moment))
    return tuple(
        str(turn_id)
        for turn_id in rows.order_by("created_at", "pk").values_list("pk", flat=True)[:MAX_FINDING_IDS]
    )


def _read_redis(*, readable: bool) -> dict[str, object]:
    """Read Redis; `readable` says that Postgres answers, which knows what the leases are held for."""
    try:
        health = worker_health.get_redis_health()
        skew = time.time() - health.time
        streams = inventory.survey_streams()
        silent = worker_health.get_sweep_age_seconds()
        ages = read_work_ages()
        return {
            "scheduler_silent_seconds": ages.scheduler_seconds,
            "queue_silent_seconds": ages.queue_seconds,
            "eviction_policy": health.eviction_policy,
            "redis_skew_seconds": skew,
            "reaper_silent_seconds": silent,
            "reaper_never_looked": silent is None,
            "reaper_blind": worker_health.was_sweep_blind(),
            "longest_stream": streams.longest,
            "streams_without_life": streams.without_life,
            "leases_without_turn": inventory.list_leases().without_turn if readable else None,
        }
    except (ServiceUnavailable, Error):
        return {}


_cached_snapshot = CachedValue(take_snapshot, CACHE_SECONDS)


def clear_caches() -> None:
    """Clear all caches after a repair, so that its effect is visible at once."""
    for cache in (_cached_summary, _cached_snapshot):
        cache.clear()
    inventory.clear_inventory_cache()
    schedules.clear_schedule_cache()
