"""The conditions of D3: each definition with a row inside and a neighbour just outside."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from config.core import redis
from config.dev.servers import find_free_port
from copilot.models import Turn, WorkerHeartbeat
from copilot.worker import heartbeat
from diagnostics import turn_filters
from diagnostics.turn_filters import TURN_FILTERS, FilterContext
from tests.support import factories

pytestmark = pytest.mark.django_db
S, M, H = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def now():
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        return cursor.fetchone()[0]


def row(now, status, **ages):
    """A turn; `started_at=3 * H` means three hours ago, other fields are set as they are."""
    turn = factories.turn(factories.session(), status)
    fields = {
        name: now - age if isinstance(age, timedelta) else age
        for name, age in {"created_at": S, "queued_at": S, **ages}.items()
    }
    Turn.objects.filter(pk=turn.pk).update(**fields)
    return turn.pk


def names_of(turn_id, moment):
    return {
        name
        for name, condition in TURN_FILTERS.items()
        if Turn.objects.filter(condition(moment), pk=turn_id).exists()
    }


RUNNING = {"attempts": 1}
TABLE = [
    # status, fields, liveness, the conditions it is in
    ("running", {"started_at": 31 * S, **RUNNING}, "dead", {"orphaned_running", "orphaned"}),
    ("running", {"started_at": 29 * S, **RUNNING}, "dead", set()),
    ("running", {"started_at": 31 * S, **RUNNING}, "live", set()),
    ("running", {"started_at": 31 * S, **RUNNING}, "unknown", set()),
    ("running", {"started_at": 24 * H + S, **RUNNING}, "unknown", {"orphaned_running", "orphaned"}),
    ("running", {"started_at": 24 * H - S, **RUNNING}, "unknown", set()),
    ("running", {"started_at": 24 * H + S, **RUNNING}, "live", {"long_running", "long_running_1h"}),
    ("running", {"started_at": 24 * H - S, **RUNNING}, "live", {"long_running_1h"}),
    ("running", {"started_at": H - S, **RUNNING}, "live", set()),
    ("running", {"started_at": S, "stop_requested_at": 6 * S, **RUNNING}, "live", {"cancel_backlog"}),
    ("running", {"started_at": S, "stop_requested_at": 4 * S, **RUNNING}, "live", set()),
    (
        "queued",
        {"created_at": 24 * H + S, "queued_at": 24 * H + S},
        "",
        {"never_started", "orphaned_queued", "orphaned"},
    ),
    ("queued", {"created_at": 24 * H - S, "queued_at": 24 * H - S}, "", {"never_started", "stuck_queued"}),
    (
        "queued",
        {"created_at": 24 * H + S, "queued_at": S},
        "",
        {"never_started", "orphaned_queued", "orphaned"},
    ),
    ("queued", {"created_at": 2 * H, "queued_at": H + S}, "", {"never_started", "stuck_queued"}),
    ("queued", {"created_at": 2 * H, "queued_at": H - S}, "", {"never_started"}),
    ("queued", {"created_at": 48 * H, "queued_at": 30 * H, "started_at": 40 * H, "attempts": 1}, "", set()),
    ("queued", {"stop_requested_at": 6 * S}, "", {"never_started", "cancel_backlog"}),
    ("waiting", {"started_at": 80 * H, "paused_at": 24 * H + S, **RUNNING}, "", {"waiting_old"}),
    ("waiting", {"started_at": 80 * H, "paused_at": 24 * H - S, **RUNNING}, "", set()),
    ("waiting", {"started_at": 24 * H + S, "paused_at": None, **RUNNING}, "", {"waiting_old"}),
    ("succeeded", {"created_at": 48 * H, "started_at": 48 * H, "stop_requested_at": H, **RUNNING}, "", set()),
    ("failed", {"created_at": 48 * H, "started_at": 48 * H, "ended_at": H, **RUNNING}, "", set()),
]


@pytest.mark.parametrize(("status", "fields", "liveness", "expected"), TABLE)
def test_each_condition_holds_its_row_and_not_the_neighbour(now, status, fields, liveness, expected):
    """A-D3.1"""
    turn_id = row(now, status, **fields)
    moment = FilterContext(
        now=now,
        dead=frozenset([turn_id] if liveness == "dead" else []),
        unknown=frozenset([turn_id] if liveness == "unknown" else []),
    )
    by_status = {status} & {"running", "queued", "waiting"}
    assert names_of(turn_id, moment) == expected | by_status


INVALID_ROWS = [
    ("queued_started_without_attempt", "queued", {"started_at": H, "attempts": 0}),
    ("queued_attempted_without_start", "queued", {"started_at": None, "attempts": 1}),
    ("running_without_start", "running", {"started_at": None}),
    ("waiting_without_start", "waiting", {"started_at": None}),
    ("ended_without_end", "succeeded", {"ended_at": None}),
    ("unended_with_end", "queued", {"ended_at": H}),
]


@pytest.fixture
def without_rules():
    """The database refuses most contradictions; rows from before a rule, or from another hand, may still hold them."""
    rules = ("an_ended_turn_and_only_an_ended_turn_has_an_end", "a_running_turn_has_started")
    with connection.cursor() as cursor:
        for rule in rules:
            cursor.execute(f"ALTER TABLE copilot_turn DROP CONSTRAINT {rule}")


@pytest.mark.parametrize(("kind", "status", "fields"), INVALID_ROWS)
def test_contradictions_are_distinguished(now, without_rules, kind, status, fields):
    """A-D3.1: one row per kind of invalid; rows that are in order are of no kind"""
    turn_id = row(now, status, **fields)
    healthy = {row(now, state) for state in ("running", "waiting", "failed")} | {
        row(now, "queued", started_at=H, attempts=1)
    }
    found = {
        name
        for name, (condition, _) in turn_filters.INVALID_STATES.items()
        if Turn.objects.filter(condition, pk=turn_id).exists()
    }
    assert found == {kind}
    assert set(
        Turn.objects.filter(turn_filters.filter_invalid(FilterContext(now=now))).values_list("pk", flat=True)
    ) == {turn_id}
    assert turn_id not in healthy


def test_a_beating_turn_is_long_but_never_orphaned(now):
    """A-D3.2"""
    turn_id = row(
        now, "running", started_at=30 * H, attempt_started_at=30 * H, worker="w", fence=7, attempts=1
    )
    heartbeat.write_redis_heartbeat("w", [(str(turn_id), 7)], life_seconds=6)
    assert names_of(turn_id, turn_filters.judge_running_turns(now)) == {
        "running",
        "long_running",
        "long_running_1h",
    }


def test_without_redis_age_is_the_only_evidence(now, settings):
    """A-D3.3"""
    younger = row(now, "running", started_at=2 * H, attempt_started_at=2 * H, attempts=1)
    older = row(now, "running", started_at=25 * H, attempt_started_at=25 * H, attempts=1)
    settings.REDIS_URL = f"redis://127.0.0.1:{find_free_port()}/0"
    redis.get_redis.cache_clear()
    try:
        moment = turn_filters.judge_running_turns(now)
    finally:
        redis.get_redis.cache_clear()
    assert names_of(younger, moment) == {"running"}
    assert names_of(older, moment) == {"running", "orphaned_running", "orphaned"}
    assert Turn.objects.filter(turn_filters.filter_orphaned_by_age(moment)).get().pk == older
    assert not Turn.objects.filter(turn_filters.filter_orphaned_by_heartbeat(moment)).exists()


def test_a_person_may_take_three_days(now):
    """A-D3.4"""
    turn_id = row(
        now, "waiting", created_at=73 * H, queued_at=73 * H, started_at=73 * H, paused_at=72 * H, attempts=1
    )
    assert names_of(turn_id, turn_filters.judge_running_turns(now)) == {"waiting", "waiting_old"}


def test_a_beat_of_another_worker_or_fence_proves_nothing(now):
    """A-D3.1: evidence is (turn, fence) in a fresh beat of the worker that has it"""
    turn_id = row(now, "running", started_at=H, attempt_started_at=H, worker="w", fence=7, attempts=1)
    for worker, fence, key in (("other", 7, 1), ("w", 6, 2)):
        WorkerHeartbeat.objects.create(
            worker=worker, lock_key=key, host="h", pid=1, version="v", turns=[[str(turn_id), fence]]
        )
    assert turn_filters.judge_running_turns(now).get_liveness(turn_id) == "dead"
