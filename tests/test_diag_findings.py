"""Findings: each code fires on its figures and is quiet on the neighbour's; nothing is found in what could not be read (D12)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from diagnostics.findings.figures import Snapshot, Summary, Worker
from diagnostics.findings.rules import evaluate_findings

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
WORKER = Worker(id="w-1", status="alive", version="1", queues=("turns",))
LATE = Worker(id="w-2", status="late", version="1", queues=("turns",))
LEAVING = Worker(id="w-3", status="alive", version="1", queues=("turns",), draining=True)
OTHER = Worker(id="w-4", status="alive", version="2", queues=("turns",))
DEAF = Worker(id="w-6", status="alive", version="1", uptime_seconds=9.0, beat_age_seconds=1.0)
MUTE = Worker(
    id="w-7", status="alive", version="1", queues=("turns",), uptime_seconds=9.0
)  # answers Celery alone
CLERK = Worker(id="w-5", status="alive", version="1", queues=("maintenance",))


def seen(summary=None, **fields):
    return Snapshot(summary=Summary(taken_at=NOW, **(summary or {})), **fields)


RATES = {"failure_ratio_24h": 0.02, "failed_1h": 10}
TABLE = [
    # code, firing snapshots, quiet snapshots
    (
        "orphans",
        [seen({"orphaned_running": 1}), seen({"orphaned_queued": 2})],
        [seen({"orphaned_running": 0})],
    ),
    ("stuck_queue", [seen({"stuck_queued": 1})], [seen({"stuck_queued": 0, "queued": 9})]),
    (
        "no_workers",
        [seen(workers=()), seen(workers=(LATE,)), seen(workers=(LEAVING,)), seen(workers=(CLERK,))],
        [
            seen(workers=(WORKER, LATE)),
            seen(workers=None),
            seen(workers=(DEAF,), dependencies_down=("redis",)),  # that is told, and is why
        ],
    ),
    (
        "queue_growing",
        [seen(queue_depths=(1, 2, 3, 4, 5)), seen(queue_depths=(9, 1, 2, 3, 4, 5))],
        [
            seen(queue_depths=(1, 2, 3, 3, 4)),
            seen(queue_depths=(1, 2, 3, 4)),
            seen(queue_depths=(5, 4, 3, 2, 1)),
        ],
    ),
    (
        "failure_spike",
        [seen({**RATES, "failure_ratio_1h": 0.0601})],
        [
            seen({**RATES, "failure_ratio_1h": 0.06}),
            seen({**RATES, "failure_ratio_1h": 0.5, "failed_1h": 9}),
            seen({"failure_ratio_1h": 0.5, "failed_1h": 10}),
        ],
    ),
    ("slow_start", [seen({"queue_wait_p95_ms": 10_001})], [seen({"queue_wait_p95_ms": 10_000})]),
    ("cancel_backlog", [seen({"cancel_backlog": 1})], [seen({"cancel_backlog": 0})]),
    ("long_running", [seen({"long_running_1h": 1})], [seen({"long_running_1h": 0})]),
    ("invalid_state", [seen({"invalid_total": 1})], [seen({"invalid_total": 0})]),
    ("lease_without_turn", [seen(leases_without_turn=("s",))], [seen(leases_without_turn=())]),
    ("stranded_pending", [seen({"stranded_sessions": 1})], [seen({"stranded_sessions": 0})]),
    (
        "stream_bloat",
        [seen(longest_stream=50_001), seen(streams_without_life=1)],
        [seen(longest_stream=50_000, streams_without_life=0)],
    ),
    ("reaper_blind", [seen(reaper_blind=True)], [seen(reaper_blind=False)]),
    (
        "reaper_silent",
        [seen(reaper_silent_seconds=30.1), seen(reaper_never_looked=True)],
        [seen(reaper_silent_seconds=30.0, reaper_never_looked=False), seen(reaper_never_looked=None)],
    ),
    ("scheduler_silent", [seen(scheduler_silent_seconds=60.1)], [seen(scheduler_silent_seconds=60.0)]),
    (
        "queue_silent:maintenance",
        [seen(scheduler_silent_seconds=3.0, queue_silent_seconds={"maintenance": 90.1, "default": 899.0})],
        [
            seen(scheduler_silent_seconds=3.0, queue_silent_seconds={"maintenance": 90.0}),
            seen(scheduler_silent_seconds=None, queue_silent_seconds={"maintenance": 500.0}),
        ],
    ),
    (
        "deaf_workers",
        [seen(workers=(WORKER, DEAF)), seen(workers=(WORKER, MUTE))],
        [seen(workers=(WORKER, replace(DEAF, uptime_seconds=7.0), replace(DEAF, draining=True), CLERK))],
    ),
    (
        "task_backlog",
        [seen({"broker_depth": {"maintenance": 51, "total": 51}})],
        [
            seen({"broker_depth": {"maintenance": 50, "default": 200, "total": 250}}),
            seen({"broker_depth": None}),
        ],
    ),
    ("mixed_versions", [seen(workers=(WORKER, OTHER))], [seen(workers=(WORKER, LATE))]),
    (
        "clock_skew",
        [seen(redis_skew_seconds=-2.1), seen(database_skew_seconds=3.0, redis_skew_seconds=0.1)],
        [seen(redis_skew_seconds=2.0, database_skew_seconds=-2.0)],
    ),
    (
        "database_read_only",
        [seen(database_takes_writes=False)],
        [seen(database_takes_writes=True), seen(database_takes_writes=None)],
    ),
    ("redis_eviction", [seen(eviction_policy="allkeys-lru")], [seen(eviction_policy="noeviction")]),
    ("orphaned_schedules", [seen(orphaned_schedules=1)], [seen(orphaned_schedules=0)]),
    ("update_backlog", [seen(update_backlog=100)], [seen(update_backlog=99)]),
    ("delivery_backlog", [seen(delivery_backlog=100)], [seen(delivery_backlog=99)]),
    ("dependency_down:broker", [seen(dependencies_down=("broker",))], [seen(dependencies_down=("redis",))]),
]


@pytest.mark.parametrize(("code", "firing", "quiet"), TABLE, ids=[line[0] for line in TABLE])
def test_each_code_fires_and_is_quiet(code, firing, quiet):
    """A-D12.1"""
    for snapshot in firing:
        found = {finding.code: finding for finding in evaluate_findings(snapshot)}
        assert found[code].why  # it is explained
        assert found[code].suggested_action
    for snapshot in quiet:
        assert code not in [finding.code for finding in evaluate_findings(snapshot)]


def test_nothing_is_found_in_what_could_not_be_read():
    """A-D12.2: everything is down, only that is said"""
    found = evaluate_findings(seen(dependencies_down=("postgres", "redis", "broker")))
    assert [finding.code for finding in found] == [
        "dependency_down:postgres",
        "dependency_down:redis",
        "dependency_down:broker",
    ]


def test_the_gravest_come_first_with_at_most_twenty_ids():
    """A-D12.1: ordered by severity"""
    ids = {"orphaned_running": tuple(str(number) for number in range(30))}
    found = evaluate_findings(
        seen({"orphaned_running": 30, "stuck_queued": 1}, workers=(WORKER, OTHER), ids=ids)
    )
    assert [finding.severity for finding in found] == ["critical", "warning", "info"]
    assert len(found[0].ids) == 20
