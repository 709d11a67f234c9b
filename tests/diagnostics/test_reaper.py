"""The reaper: acts on the provably dead, looks twice at a mass death, and leaves all others alone (D2, D3, D10)."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connection

from config.core.redis import get_redis
from copilot.models import Session, Turn, WorkerHeartbeat
from copilot.providers.scripted import ScriptedText
from copilot.realtime import redis_keys
from copilot.worker import health, heartbeat, liveness
from diagnostics import reaper, tasks
from diagnostics.findings.rules import evaluate_findings
from diagnostics.models import RepairAudit
from tests.support import factories
from tests.support.factories import make_month_of_turns
from tests.support.findings import make_snapshot
from tests.support.turn_engine import cue, ended, endings, quiet, start, status, together, told, until


def running(number, worker="gone", *, beating=()):
    """Running turns of a worker that may or may not beat for them."""
    turns = [factories.turn(factories.session(), "running", worker=worker, attempts=1) for _ in range(number)]
    Turn.objects.filter(worker=worker).update(attempt_started_at="2026-01-01T00:00:00Z")
    beat([turn for place, turn in enumerate(turns) if place in beating], worker)
    return turns


def beat(turns, worker="gone"):
    heartbeat.write_redis_heartbeat(worker, [(str(turn.pk), turn.fence) for turn in turns], life_seconds=6)


def next_tick():
    reaper._state.ticks += 1


def _never(*args):
    raise AssertionError("nothing may wait here")


def _unreadable(*args, **options):
    raise OperationalError("gone")


@pytest.fixture(autouse=True)
def _forget():
    reaper._state.suspected = {}
    reaper._state.tried = {}
    reaper._state.slow_sweep_at = 0.0


@pytest.mark.django_db(transaction=True)
class TestJudging:
    def test_a_turn_nobody_beats_for_is_dead(self):
        """D2"""
        [turn] = running(1)
        assert reaper.take_over_dead_turns() == 1
        turn.refresh_from_db()
        assert (turn.status, turn.attempts, turn.recovered_at is not None) == ("queued", 2, True)

    def test_a_turn_begun_a_moment_ago_is_live(self):
        """A-D2.5"""
        turn = factories.turn(factories.session(), "running", worker="gone")
        Turn.objects.filter(pk=turn.pk).update(attempt_started_at=factories.timezone.now())
        assert reaper.take_over_dead_turns() == 0

    def test_either_beat_keeps_a_turn_alive(self):
        """A-D2.4: Postgres silent and Redis fine, or the other way round"""
        [first] = running(1, "one", beating=[0])
        [second] = running(1, "two")
        WorkerHeartbeat.objects.create(
            worker="two", lock_key=7, host="h", pid=1, version="v", turns=[[str(second.pk), second.fence]]
        )
        heartbeat.write_redis_heartbeat("two", [(str(second.pk), second.fence)], life_seconds=6)
        assert reaper.take_over_dead_turns() == 0
        assert {first.status, second.status} == {"running"}

    def test_a_beat_for_another_fence_proves_nothing(self):
        """D2: (turn, fence)"""
        [turn] = running(1)
        heartbeat.write_redis_heartbeat("gone", [(str(turn.pk), turn.fence - 1)], life_seconds=6)
        assert reaper.take_over_dead_turns() == 1

    def test_a_free_lock_and_a_fresh_redis_beat_mean_a_cut_connection(self):
        """D2: nothing is taken over"""
        [turn] = running(1, beating=[0])
        WorkerHeartbeat.objects.create(
            worker="gone", lock_key=7, host="h", pid=1, version="v", turns=[[str(turn.pk), turn.fence]]
        )
        assert reaper.take_over_dead_turns() == 0
        get_redis().delete(redis_keys.heartbeat_key("gone"))
        assert reaper.take_over_dead_turns() == 1

    def test_waiting_queued_and_ended_turns_are_never_judged(self):
        """D2, D10"""
        for state in ("queued", "waiting", "succeeded", "failed", "cancelled"):
            factories.turn(factories.session(), state, worker="gone")
        assert liveness.list_turn_evidence() == []

    def test_a_mass_death_gets_a_second_look(self):
        """A-D10.6: 30 of 40 look dead in one look and are back in the next"""
        turns = running(40, beating=range(10))
        assert reaper.take_over_dead_turns() == 0
        beat(turns)
        next_tick()
        assert reaper.take_over_dead_turns() == 0
        assert Turn.objects.filter(status="running").count() == 40

    def test_a_mass_death_that_lasts_is_acted_upon(self):
        """D10: the next tick agrees; the other looks of the same tick are no second opinion"""
        running(40, beating=range(10))
        assert [reaper.take_over_dead_turns() for _ in range(4)] == [0, 0, 0, 0]
        next_tick()
        assert reaper.take_over_dead_turns() == 30

    def test_a_mass_death_that_was_none_for_a_moment_is_judged_again(self):
        """D10: dead, alive and dead again in the next tick is no agreement"""
        turns = running(40, beating=range(10))
        assert reaper.take_over_dead_turns() == 0
        beat(turns)
        assert reaper.take_over_dead_turns() == 0
        next_tick()
        beat(turns[:10])
        assert reaper.take_over_dead_turns() == 0

    def test_a_few_deaths_are_acted_upon_at_once(self):
        """D10: the brake is for at least ten, and more than half"""
        running(9)
        assert reaper.take_over_dead_turns() == 9
        running(30, "other", beating=range(16))
        assert reaper.take_over_dead_turns() == 14

    def test_two_sweepers_take_a_turn_over_once(self):
        """A-D10.3"""
        for _ in range(10):
            [turn] = running(1)
            assert sorted(together(reaper.take_over_dead_turns, reaper.take_over_dead_turns)) == [0, 1]
            turn.refresh_from_db()
            assert turn.attempts == 2
            Turn.objects.filter(pk=turn.pk).delete()

    def test_a_takeover_is_recorded_with_what_it_found_and_left(self):
        """A-D10.3, D8: actor `reaper`, one row for all of a look, after it is done"""
        turns = running(3)
        assert reaper.take_over_dead_turns() == 3
        assert reaper.take_over_dead_turns() == 0
        audit = RepairAudit.objects.get()
        assert (audit.actor, audit.admin_id, audit.action, audit.outcome) == (
            "reaper",
            None,
            "take_over",
            "done",
        )
        assert set(audit.ids) == {turn.pk for turn in turns}
        assert {change["id"]: change["before"]["fence"] for change in audit.changes} == {
            str(turn.pk): turn.fence for turn in turns
        }
        assert {change["after"]["status"] for change in audit.changes} == {"queued"}

    def test_whatever_else_it_repairs_is_recorded_too(self):
        """D8, D10: a stop overridden, a task sent again, and that only once"""
        stopped = factories.turn(factories.session(), "running", worker="w")
        sent = factories.turn(factories.session(), "queued")
        long_ago = "2026-01-01T00:00:00Z"
        Turn.objects.filter(pk=stopped.pk).update(
            stop_requested_at=long_ago, attempt_started_at=factories.timezone.now()
        )
        Turn.objects.filter(pk=sent.pk).update(dispatch_count=1)
        for _ in range(2):
            Turn.objects.filter(pk=sent.pk).update(dispatched_at=long_ago)
            reaper.run_sweep_steps()
        rows = RepairAudit.objects.exclude(action="restore")  # an empty Redis looks like one that forgot
        found = {audit.action: audit.ids for audit in rows}
        assert found == {"override_stop": [stopped.pk], "send_again": [sent.pk]}
        assert rows.count() == 2

    def test_all_that_died_meanwhile_is_handled_in_one_pass(self):
        """A-D10.8: after the reaper itself was away, which is told while it lasts"""
        heartbeat.write_sweep()
        get_redis().pexpire(redis_keys.REAPER_KEY, (heartbeat.SWEEP_LIFETIME_SECONDS - 61) * 1000)
        silent = health.get_sweep_age_seconds()
        assert [one.code for one in evaluate_findings(make_snapshot(reaper_silent_seconds=silent))] == [
            "reaper_silent"
        ]
        running(9)
        tasks.reap()
        assert not Turn.objects.filter(status="running").exists()
        assert (health.get_sweep_age_seconds() or 0) < 30

    def test_a_blind_reaper_says_so(self, monkeypatch):
        """D10: Postgres cannot be read, nobody is judged"""
        monkeypatch.setattr(liveness, "list_turn_evidence", _unreadable)
        monkeypatch.setattr(liveness, "list_turn_evidence", _unreadable)
        tasks.reap()
        assert health.was_sweep_blind()
        monkeypatch.undo()
        reaper.run_sweep_steps()
        assert not health.was_sweep_blind()

    def test_a_sweep_that_is_under_way_here_is_not_begun_again(self):
        """D10: ticks of an older release that wait in the queue cost nothing beside the loop"""
        with reaper._sweep_lock:
            assert together(reaper.run_sweep, reaper.run_probe) == [False, False]
        assert together(reaper.run_sweep) == [True]

    def test_an_idle_sweep_does_not_wait(self, monkeypatch):
        """D10: it once took as long as the pause between two of them, so that they queued up"""
        monkeypatch.setattr(reaper.time, "sleep", _never)
        assert reaper.run_sweep() is True


def _rows_read() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables"
            " WHERE relname LIKE 'copilot%%'"
        )
        return int(cursor.fetchone()[0])


@pytest.mark.django_db
def test_an_idle_sweep_does_not_read_the_history():
    """D10: it was late in an installation with 3,000 turns, and on time in an empty one"""
    make_month_of_turns(3000, unfinished=0)
    with connection.cursor() as cursor:
        for session in Session.objects.all()[:30]:
            factories.many_messages(session, 100, length=10)
        cursor.execute("ANALYZE")
    assert reaper.run_sweep()  # what one sweep does for the first time only
    before = _rows_read()
    assert reaper.run_sweep()
    assert _rows_read() - before < 100


def test_a_killed_worker_is_noticed_by_its_lock(rig, model):
    """T4.2, P9: without waiting for its beat to grow old"""
    session = factories.session()
    model.will(ScriptedText("Half"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    rig.worker.kill()
    get_redis().delete(redis_keys.heartbeat_key(rig.worker.name))  # it lives a second longer than the process
    assert WorkerHeartbeat.objects.filter(pk=rig.worker.name).exists()
    rig.start_worker()
    assert reaper.take_over_dead_turns() == 1
    assert ended(turn_id).status == "succeeded"


def test_a_busy_loop_is_not_a_dead_worker(rig, model):
    """A-D2.3: beats come from a thread of their own"""
    session = factories.session()
    model.will(ScriptedText("Half"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    rig.worker._stop_loop()  # nothing runs on the loop, and the beat continues
    Turn.objects.filter(pk=turn_id).update(attempt_started_at="2026-01-01T00:00:00Z")
    until(lambda: WorkerHeartbeat.objects.get(pk=rig.worker.name).turns == [[str(turn_id), 1]], 8)
    assert reaper.take_over_dead_turns() == 0
    rig.worker.wake()
    model.give(1)
    assert ended(turn_id).status == "succeeded"


def test_an_ending_that_a_dying_worker_could_not_publish_is_published(rig, model):
    """T9.6: killed between the row's end and the log"""
    session = factories.session()
    model.will(ScriptedText("The end"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    rig.worker.kill()
    Turn.objects.filter(pk=turn_id).update(
        status="succeeded",
        ended_at=factories.timezone.now() - factories.timezone.timedelta(seconds=20),
        summary={
            "duration_ms": 1,
            "first_token_ms": None,
            "tokens_per_second": None,
            "rounds": 1,
            "tokens": {},
            "model": "m",
        },
    )
    WorkerHeartbeat.objects.filter(pk=rig.worker.name).update(last_beat_at="2026-01-01T00:00:00Z")
    get_redis().delete(redis_keys.heartbeat_key(rig.worker.name), redis_keys.event_log_key(str(session.pk)))
    get_redis().xadd(
        redis_keys.event_log_key(str(session.pk)), {"k": "turn.heartbeat", "e": "{}"}, id="1-1"
    )  # an old log
    rig.start_worker()
    reaper.run_sweep_steps()
    assert endings(session.pk, turn_id) == ["turn.succeeded"]
    reaper._state.slow_sweep_at = 0.0
    reaper.run_sweep_steps()
    quiet(session)
    assert endings(session.pk, turn_id) == ["turn.succeeded"]
    assert told(session.pk, "session.snapshot")[-1].reset is True
    assert ended(start(session, "Next")).status == "succeeded"


def test_a_tick_does_all_of_it(rig, model):
    """D10: a look for dead workers, and a sweep for everything else"""
    rig.hold_tasks()
    session = factories.session()
    turn_id = start(session)
    Turn.objects.filter(pk=turn_id).update(dispatched_at="2026-01-01T00:00:00Z")
    rig.start_worker()
    tasks.reap()
    assert ended(turn_id).status == "succeeded"
    assert status(turn_id) == "succeeded"
