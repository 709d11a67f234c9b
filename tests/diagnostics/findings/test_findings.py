"""Findings: each code fires on its figures and is quiet on the neighbour's; nothing is found in what could not be read (D12)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnostics.findings.figures import Worker
from diagnostics.findings.rules import evaluate_findings
from tests.support.findings import make_snapshot

WORKER = Worker(id="w-1", status="alive", version="1", queues=("turns",))
LATE = Worker(id="w-2", status="late", version="1", queues=("turns",))
LEAVING = Worker(id="w-3", status="alive", version="1", queues=("turns",), draining=True)
OTHER = Worker(id="w-4", status="alive", version="2", queues=("turns",))
DEAF = Worker(id="w-6", status="alive", version="1", uptime_seconds=9.0, beat_age_seconds=1.0)
MUTE = Worker(
    id="w-7", status="alive", version="1", queues=("turns",), uptime_seconds=9.0
)  # answers Celery alone
CLERK = Worker(id="w-5", status="alive", version="1", queues=("maintenance",))


RATES = {"failure_ratio_24h": 0.02, "failed_1h": 10}
TABLE = [
    # code, firing snapshots, quiet snapshots
    (
        "orphans",
        [make_snapshot({"orphaned_running": 1}), make_snapshot({"orphaned_queued": 2})],
        [make_snapshot({"orphaned_running": 0})],
    ),
    ("stuck_queue", [make_snapshot({"stuck_queued": 1})], [make_snapshot({"stuck_queued": 0, "queued": 9})]),
    (
        "no_workers",
        [
            make_snapshot(workers=()),
            make_snapshot(workers=(LATE,)),
            make_snapshot(workers=(LEAVING,)),
            make_snapshot(workers=(CLERK,)),
        ],
        [
            make_snapshot(workers=(WORKER, LATE)),
            make_snapshot(workers=None),
            make_snapshot(workers=(DEAF,), dependencies_down=("redis",)),  # that is told, and is why
        ],
    ),
    (
        "queue_growing",
        [make_snapshot(queue_depths=(1, 2, 3, 4, 5)), make_snapshot(queue_depths=(9, 1, 2, 3, 4, 5))],
        [
            make_snapshot(queue_depths=(1, 2, 3, 3, 4)),
            make_snapshot(queue_depths=(1, 2, 3, 4)),
            make_snapshot(queue_depths=(5, 4, 3, 2, 1)),
        ],
    ),
    (
        "failure_spike",
        [make_snapshot({**RATES, "failure_ratio_1h": 0.0601})],
        [
            make_snapshot({**RATES, "failure_ratio_1h": 0.06}),
            make_snapshot({**RATES, "failure_ratio_1h": 0.5, "failed_1h": 9}),
            make_snapshot({"failure_ratio_1h": 0.5, "failed_1h": 10}),
        ],
    ),
    (
        "slow_start",
        [make_snapshot({"queue_wait_p95_ms": 10_001})],
        [make_snapshot({"queue_wait_p95_ms": 10_000})],
    ),
    ("cancel_backlog", [make_snapshot({"cancel_backlog": 1})], [make_snapshot({"cancel_backlog": 0})]),
    ("long_running", [make_snapshot({"long_running_1h": 1})], [make_snapshot({"long_running_1h": 0})]),
    ("invalid_state", [make_snapshot({"invalid_total": 1})], [make_snapshot({"invalid_total": 0})]),
    (
        "lease_without_turn",
        [make_snapshot(leases_without_turn=("s",))],
        [make_snapshot(leases_without_turn=())],
    ),
    (
        "stranded_pending",
        [make_snapshot({"stranded_sessions": 1})],
        [make_snapshot({"stranded_sessions": 0})],
    ),
    (
        "stream_bloat",
        [make_snapshot(longest_stream=50_001), make_snapshot(streams_without_life=1)],
        [make_snapshot(longest_stream=50_000, streams_without_life=0)],
    ),
    ("reaper_blind", [make_snapshot(reaper_blind=True)], [make_snapshot(reaper_blind=False)]),
    (
        "reaper_silent",
        [make_snapshot(reaper_silent_seconds=30.1), make_snapshot(reaper_never_looked=True)],
        [
            make_snapshot(reaper_silent_seconds=30.0, reaper_never_looked=False),
            make_snapshot(reaper_never_looked=None),
        ],
    ),
    (
        "scheduler_silent",
        [make_snapshot(scheduler_silent_seconds=60.1)],
        [make_snapshot(scheduler_silent_seconds=60.0)],
    ),
    (
        "queue_silent:maintenance",
        [
            make_snapshot(
                scheduler_silent_seconds=3.0, queue_silent_seconds={"maintenance": 90.1, "default": 899.0}
            )
        ],
        [
            make_snapshot(scheduler_silent_seconds=3.0, queue_silent_seconds={"maintenance": 90.0}),
            make_snapshot(scheduler_silent_seconds=None, queue_silent_seconds={"maintenance": 500.0}),
        ],
    ),
    (
        "deaf_workers",
        [make_snapshot(workers=(WORKER, DEAF)), make_snapshot(workers=(WORKER, MUTE))],
        [
            make_snapshot(
                workers=(WORKER, replace(DEAF, uptime_seconds=7.0), replace(DEAF, draining=True), CLERK)
            )
        ],
    ),
    (
        "task_backlog",
        [make_snapshot({"broker_depth": {"maintenance": 51, "total": 51}})],
        [
            make_snapshot({"broker_depth": {"maintenance": 50, "default": 200, "total": 250}}),
            make_snapshot({"broker_depth": None}),
        ],
    ),
    ("mixed_versions", [make_snapshot(workers=(WORKER, OTHER))], [make_snapshot(workers=(WORKER, LATE))]),
    (
        "clock_skew",
        [
            make_snapshot(redis_skew_seconds=-2.1),
            make_snapshot(database_skew_seconds=3.0, redis_skew_seconds=0.1),
        ],
        [make_snapshot(redis_skew_seconds=2.0, database_skew_seconds=-2.0)],
    ),
    (
        "database_read_only",
        [make_snapshot(database_takes_writes=False)],
        [make_snapshot(database_takes_writes=True), make_snapshot(database_takes_writes=None)],
    ),
    (
        "redis_eviction",
        [make_snapshot(eviction_policy="allkeys-lru")],
        [make_snapshot(eviction_policy="noeviction")],
    ),
    ("orphaned_schedules", [make_snapshot(orphaned_schedules=1)], [make_snapshot(orphaned_schedules=0)]),
    ("update_backlog", [make_snapshot(update_backlog=100)], [make_snapshot(update_backlog=99)]),
    ("delivery_backlog", [make_snapshot(delivery_backlog=100)], [make_snapshot(delivery_backlog=99)]),
    (
        "dependency_down:broker",
        [make_snapshot(dependencies_down=("broker",))],
        [make_snapshot(dependencies_down=("redis",))],
    ),
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
    found = evaluate_findings(make_snapshot(dependencies_down=("postgres", "redis", "broker")))
    assert [finding.code for finding in found] == [
        "dependency_down:postgres",
        "dependency_down:redis",
        "dependency_down:broker",
    ]


def test_the_gravest_come_first_with_at_most_twenty_ids():
    """A-D12.1: ordered by severity"""
    ids = {"orphaned_running": tuple(str(number) for number in range(30))}
    found = evaluate_findings(
        make_snapshot({"orphaned_running": 30, "stuck_queued": 1}, workers=(WORKER, OTHER), ids=ids)
    )
    assert [finding.severity for finding in found] == ["critical", "warning", "info"]
    assert len(found[0].ids) == 20
