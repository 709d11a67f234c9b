"""Signs of life: a beat in two places, and a lock that dies with the process (D2)."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from config.core.redis import get_redis
from copilot.models import WorkerHeartbeat
from copilot.realtime import redis_keys
from copilot.worker import heartbeat
from tests.support.turn_engine import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def beat():
    running = [("turn", 3)]
    made = heartbeat.HeartbeatThread(heartbeat.create_worker_identity(), lambda: running, ["turns"])
    made.start_heartbeat()
    yield made
    if made.is_alive():
        made.stop_heartbeat()


def lock_is_held(identity):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = %s",
            [heartbeat.WORKER_LOCK_SPACE, identity.lock_key & 0xFFFFFFFF],
        )
        return cursor.fetchone()[0] == 1


def test_before_any_turn_is_taken_the_worker_is_known(beat):
    """D2: lock, row and key"""
    name = beat.identity.worker
    row = WorkerHeartbeat.objects.get(pk=name)
    assert (row.turns, row.queues, row.draining) == ([["turn", 3]], ["turns"], False)
    assert heartbeat.read_redis_heartbeats([name], life_seconds=6)[name].turns == {("turn", 3)}
    assert lock_is_held(beat.identity)


def test_beats_go_on_by_themselves(beat):
    """D2: every two seconds in Postgres, more often in Redis"""
    name = beat.identity.worker
    first = WorkerHeartbeat.objects.get(pk=name).last_beat_at
    until(lambda: WorkerHeartbeat.objects.get(pk=name).last_beat_at > first, 6)
    assert heartbeat.read_redis_heartbeats([name], life_seconds=6)[name].age_seconds < 2


def test_a_postgres_that_hangs_does_not_silence_the_beat_in_redis(beat):
    """A-D2.4: nobody may write the rows, as during a change of their table; nor does leaving wait for it"""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE copilot_workerheartbeat IN EXCLUSIVE MODE")
        until(lambda: somebody_waits_for_a_lock(cursor), 20)
        get_redis().delete(redis_keys.heartbeat_key(beat.identity.worker))
        until(lambda: heartbeat.read_redis_heartbeats([beat.identity.worker], life_seconds=6), 20)
        beat.mark_draining()
    until(lambda: WorkerHeartbeat.objects.get(pk=beat.identity.worker).draining, 20)


def somebody_waits_for_a_lock(cursor):
    cursor.execute(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'copilot_workerheartbeat'::regclass)"
    )
    return cursor.fetchone()[0]


def test_a_cut_connection_takes_the_lock_again(beat):
    """D2: before anything else"""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s",
            [heartbeat.WORKER_LOCK_SPACE],
        )
    until(lambda: lock_is_held(beat.identity), 8)


def test_redis_that_was_flushed_hears_the_next_beat(beat):
    """D2"""
    get_redis().flushdb()
    until(lambda: heartbeat.read_redis_heartbeats([beat.identity.worker], life_seconds=6), 5)


def test_a_worker_that_leaves_on_purpose_leaves_nothing(beat):
    """T9.4"""
    beat.mark_draining()
    assert WorkerHeartbeat.objects.get(pk=beat.identity.worker).draining is True
    beat.stop_heartbeat()
    assert not WorkerHeartbeat.objects.exists()
    assert heartbeat.read_redis_heartbeats([beat.identity.worker], life_seconds=6) == {}
    until(lambda: not lock_is_held(beat.identity), 5)


def test_no_two_processes_share_a_name():
    assert len({heartbeat.create_worker_identity() for _ in range(100)}) == 100


def test_a_living_worker_is_never_among_the_dead(beat):
    """T9.6: silent in Postgres, but its lock is held; then free, but it beats in Redis"""
    WorkerHeartbeat.objects.update(last_beat_at="2026-01-01T00:00:00Z")
    assert heartbeat.list_dead_workers() == []


def test_rows_of_workers_long_gone_are_purged():
    """D2"""
    for name, when in (("old", "2026-01-01T00:00:00Z"), ("new", None)):
        row = WorkerHeartbeat.objects.create(
            worker=name, lock_key=hash(name) % 1000, host="h", pid=1, version="v"
        )
        if when:
            WorkerHeartbeat.objects.filter(pk=row.pk).update(last_beat_at=when)
    assert heartbeat.purge_old_workers() == 1
    assert [row.worker for row in WorkerHeartbeat.objects.all()] == ["new"]
