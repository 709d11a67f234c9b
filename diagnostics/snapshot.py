"""Everything there is to know, read once: the summary of D4, and what findings need besides (D4, D12)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from django.db import Error, connection

from copilot.errors import Unavailable
from copilot.queries import executions, inventory
from diagnostics import broker, conditions, counting, samples, timetable
from diagnostics import inventory as present
from diagnostics.conditions import Moment
from diagnostics.findings import MOST_IDS, Snapshot, Summary
from diagnostics.reading import one_moment, takes_writes
from diagnostics.shared import Question, Shared, answered
from diagnostics.work_ages import read_work_ages
from linking import queries as linking

CACHE_SECONDS = 5.0
BROKER_SECONDS = 1.0  # longer, and its figures are left out
SHOWN = {  # conditions of which findings name some ids, each with the figure that counts them
    "orphaned_running": "orphaned_running",
    "orphaned_queued": "orphaned_queued",
    "stuck_queued": "stuck_queued",
    "long_running": "long_running_24h",
    "long_running_1h": "long_running_1h",
    "cancel_backlog": "cancel_backlog",
    "invalid": "invalid_total",
}
T = TypeVar("T")


# --- the summary -------------------------------------------------------------------------------------


def compute() -> Summary:
    """Now, whatever is remembered; a source that fails leaves its figures out and its name behind."""
    queues = _queues.asked()
    degraded: list[str] = []
    figures: counting.Figures = {}
    now = datetime.now(UTC)
    try:
        with one_moment() as now:
            figures = counting.figures(conditions.judged(now))
    except Error:
        connection.close()
        degraded.append("postgres")
    waking = _or_none(inventory.wakeups_waiting)
    if waking is None:
        degraded.append("redis")
    depths = answered(queues, seconds=BROKER_SECONDS)
    if depths is None:
        degraded.append("broker")
    return Summary(
        taken_at=now,
        degraded=tuple(sorted(degraded)),
        broker_depth=_depth(depths, waking),
        broker_unacked=depths.unacked if depths else None,
        **figures,  # type: ignore[arg-type]  # named as D4 names them
    )


def _depth(depths: broker.Depths | None, waking: int | None) -> Mapping[str, int] | None:
    """Wake-ups are a queue of their own, beside the broker's."""
    if depths is None:
        return None
    by_queue = dict(depths.by_queue) if waking is None else {**depths.by_queue, "wakeups": waking}
    return {**by_queue, "total": sum(by_queue.values())}


def _or_none(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except Unavailable:
        return None


_queues = Question("broker depths", broker.depths, away=broker.UNREACHABLE)
_summary = Shared(compute, CACHE_SECONDS)


def summary() -> Summary:
    """At most five seconds old; of all who ask at once, one computes."""
    return _summary.get()


def summary_at_hand(*, seconds: float) -> Summary:
    """For who must not wait: as old as he allows, and renewed behind his back."""
    return _summary.at_hand(seconds=seconds)


# --- everything --------------------------------------------------------------------------------------


def take() -> Snapshot:
    """Return the summary and what else findings are drawn from; what does not answer is left out.

    Workers are looked at more often than the rest: one that takes no turns must be a finding within ten seconds.
    """
    seen = _snapshot.get()
    if seen.workers is None:
        return seen
    try:
        return replace(seen, workers=present.workers())
    except Error:
        connection.close()
        return seen


def look() -> Snapshot:
    figures = summary()
    down = tuple(name for name in figures.degraded)
    rows = {} if "postgres" in down else _from_postgres(figures)
    live = {} if "redis" in down else _from_redis(readable="postgres" not in down)
    return Snapshot(summary=figures, dependencies_down=down, **rows, **live)  # type: ignore[arg-type]


def _from_postgres(figures: Summary) -> dict[str, object]:
    try:
        with one_moment() as now:
            skew = time.time() - now.timestamp()  # at once: what follows takes its time
            moment = conditions.judged(now)
            ids = {
                name: _some_ids(name, moment)
                for name, figure in SHOWN.items()
                if getattr(figures, figure) != 0  # without a number there is no finding that would name ids
            }
            ids["stranded_pending"] = tuple(str(one) for one in counting.stranded_sessions()[:MOST_IDS])
            waiting = linking.backlogs()
        return {
            "ids": ids,
            "database_takes_writes": takes_writes(),
            "database_skew_seconds": skew,
            "workers": present.workers(),
            "orphaned_schedules": timetable.summary().orphaned_total,
            "queue_depths": samples.recent("queued", 5),
            "update_backlog": waiting.updates_waiting,
            "delivery_backlog": waiting.deliveries_waiting,
        }
    except Error:
        connection.close()
        return {}


def _some_ids(name: str, moment: Moment) -> tuple[str, ...]:
    rows = executions.everything().filter(conditions.CONDITIONS[name](moment))
    return tuple(
        str(one) for one in rows.order_by("created_at", "pk").values_list("pk", flat=True)[:MOST_IDS]
    )


def _from_redis(*, readable: bool) -> dict[str, object]:
    """`readable`: Postgres answers, which knows what the leases are held for."""
    try:
        health = inventory.redis_health()
        skew = time.time() - health.time
        streams = present.streams()
        silent = inventory.reaper_silent_seconds()
        ages = read_work_ages()
        return {
            "scheduler_silent_seconds": ages.scheduler_seconds,
            "queue_silent_seconds": ages.queue_seconds,
            "eviction_policy": health.eviction_policy,
            "redis_skew_seconds": skew,
            "reaper_silent_seconds": silent,
            "reaper_never_looked": silent is None,
            "reaper_blind": inventory.reaper_was_blind(),
            "longest_stream": streams.longest,
            "streams_without_life": streams.without_life,
            "leases_without_turn": present.leases().without_turn if readable else None,
        }
    except (Unavailable, Error):
        return {}


_snapshot = Shared(look, CACHE_SECONDS)


def forget() -> None:
    """After a repair: whoever made it wants to see what it did."""
    for remembered in (_summary, _snapshot):
        remembered.forget()
    present.forget()
    timetable.forget()
