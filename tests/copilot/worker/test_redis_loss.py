"""What Redis forgot and what was lost on the way: leases, queues, tasks and messages are put back (T2.5, T9.2)."""

from __future__ import annotations

import pytest
from django.db import transaction

from config.core.redis import get_redis
from copilot.chat import next_turn, stop
from copilot.models import Message, Turn
from copilot.providers.scripted import ScriptedText
from copilot.realtime import lease, redis_keys
from copilot.worker import liveness, recovery
from diagnostics import reaper
from tests.support import factories
from tests.support.turn_engine import (
    answer,
    cue,
    ended,
    endings,
    lease_of,
    queue,
    quiet,
    said,
    shown,
    start,
    told,
    transcript,
    until,
)


@pytest.fixture
def session(rig):
    return factories.session()


# --- what Redis forgot (T2.5) ------------------------------------------------------------------------


def test_flushing_redis_harms_no_running_turn(rig, model):
    """A-D2.1: twenty turns go on, none is taken over, and their clients get a fresh page"""
    model.otherwise = lambda request: [ScriptedText("Before "), cue(1), ScriptedText("and after.")]
    people = [factories.user(f"sailor{number}") for number in range(4)]  # each may have ten at once
    sailing = [
        (session, start(session))
        for session in (factories.session(people[number % 4]) for number in range(20))
    ]
    until(lambda: all(shown(session) for session, _ in sailing))
    queue(sailing[0][0], "Still in line")
    get_redis().flushdb()
    reaper.run_sweep_steps()
    assert reaper.take_over_dead_turns() == 0
    model.give(1)
    for session, turn_id in sailing:
        turn = ended(turn_id)
        assert (turn.status, turn.attempts) == ("succeeded", 1)
        assert answer(turn_id).startswith("Before and after.")
        quiet_but_logless(session)
    assert said(sailing[0][0]) == ["Hello", "Still in line"]


def quiet_but_logless(session):
    """The log was lost, so endings cannot be counted there."""
    until(lambda: not Turn.objects.filter(session=session, status__in=Turn.UNFINISHED).exists())
    until(lambda: lease_of(session) == {})


def test_redis_lost_in_the_moment_of_the_end_loses_no_ending(session, model, rig):
    """T2.5, T5.4: the ending is told although Redis no longer knows the fence"""
    model.will(ScriptedText("The end"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    with transaction.atomic():
        Turn.objects.select_for_update().get(pk=turn_id)  # the end waits for this lock
        model.give(1)
        until(lambda: told(session.pk, "step.finished"))
        get_redis().flushdb()
    until(lambda: endings(session.pk, turn_id) == ["turn.succeeded"])
    until(lambda: not rig.worker.running())
    assert lease_of(session) == {}


def test_after_a_flush_a_new_message_queues_behind_the_turn_that_runs(session, model):
    """T2.5: Postgres remembers the turn that Redis forgot"""
    model.will(ScriptedText("Running"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    get_redis().flushdb()
    message_id = queue(session, "Behind")
    assert Message.objects.get(pk=message_id).sequence is None
    model.give(1)
    ended(turn_id)
    until(lambda: said(session) == ["Hello", "Behind"])


def test_after_a_flush_chips_go_before_the_next_message(session, model):
    """T2.5, T6.2"""
    from copilot.providers.scripted import ScriptedHang

    model.will(ScriptedText("Talking"), ScriptedHang())
    turn_id = start(session, "One")
    until(lambda: shown(session))
    queue(session, "Two")
    stop.stop_session(session.owner_id, session.pk)
    ended(turn_id)
    until(lambda: lease_of(session) == {})
    get_redis().flushdb()
    start(session, "Three")
    until(lambda: said(session) == ["One", "Two", "Three"])


def test_the_sweep_puts_back_leases_and_queues(session, model, rig):
    """T2.5"""
    model.will(ScriptedText("Running"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    queue(session, "Behind", run_id="behind")
    get_redis().flushdb()
    assert recovery.restore_redis_if_empty() is True
    assert recovery.restore_redis_if_empty() is False
    assert lease_of(session)["turn"] == str(turn_id)
    assert get_redis().zcard(redis_keys.queue_key(str(session.pk))) == 1
    model.give(1)
    until(lambda: said(session) == ["Hello", "Behind"])


def test_what_a_turn_left_behind_while_its_queue_was_forgotten_is_started_by_the_next_sweep(
    session, model, rig
):
    """T2.5, T3.6: it let the session go without knowing what waited; who has a run_id waits for nothing"""
    model.will(ScriptedText("Running"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    queue(session, "Behind", run_id="behind")
    get_redis().flushdb()
    model.give(1)
    ended(turn_id)
    until(lambda: rig.worker.is_idle)
    assert said(session) == ["Hello"]
    reaper.run_sweep_steps()
    until(lambda: said(session) == ["Hello", "Behind"])


# --- messages and tasks that were lost ---------------------------------------------------------------


def test_a_lost_task_is_sent_again(session, rig, settings):
    """T9.2: once, and not before its time"""
    rig.hold_tasks()
    turn_id = start(session)
    assert recovery.resend_queued_turns() == 0
    Turn.objects.filter(pk=turn_id).update(dispatched_at="2026-01-01T00:00:00Z")
    rig.start_worker()
    assert recovery.resend_queued_turns() == 1
    assert ended(turn_id).status == "succeeded"
    assert Turn.objects.get(pk=turn_id).dispatch_count == 2
    assert recovery.resend_queued_turns() == 0


def old(*messages):
    Message.objects.filter(pk__in=[message.pk for message in messages]).update(
        created_at="2026-01-01T00:00:00Z"
    )


def test_stranded_messages_are_found_and_chips_are_not(rig):
    """D3: by the last turn's end, and by messages accepted after it"""
    free, chip, named, late = (factories.session() for _ in range(4))
    factories.turn(free, "succeeded")
    old(factories.pending(free, "waits"))
    waits = factories.pending(chip, "kept")
    factories.turn(chip, "cancelled")
    old(waits)
    factories.turn(named, "failed")
    old(factories.pending(named, "has a name", run_id="named"))
    factories.turn(late, "failed")
    Turn.objects.filter(session=late).update(ended_at="2025-01-01T00:00:00Z")
    old(factories.pending(late, "came later"))
    fresh_one = factories.session()
    factories.pending(fresh_one, "just came")
    assert set(recovery.list_sessions_to_start()) == {free.pk, named.pk, late.pk}


def test_a_stranded_message_is_answered(rig, session):
    """D10"""
    old(factories.pending(session, "Forgotten"))
    reaper.run_sweep_steps()
    until(lambda: transcript(session) == ["Forgotten", "Aye."])
    quiet(session)


def test_a_lease_whose_request_died_is_removed(rig, session):
    """T9.6: a web process killed between the claim and the turn's row"""
    from copilot.realtime import lease

    lease.claim_or_queue(
        str(session.pk), turn_id=str(factories.uuid.uuid4()), token="dead", member=None, order=0.0
    )
    assert recovery.remove_stale_leases() == 0
    get_redis().hset(redis_keys.lease_key(str(session.pk)), "claimed_at", 1)
    assert recovery.remove_stale_leases() == 1
    assert ended(start(session)).status == "succeeded"


def test_judging_needs_both_sources(session, rig):
    """D2: live, dead, unknown"""
    suspect = liveness.TurnEvidence(
        turn_id=str(factories.uuid.uuid4()),
        session_id=str(session.pk),
        fence=1,
        attempts=1,
        stopped=False,
        young=False,
        listed=False,
        lock_free=False,
        worker="gone",
    )
    assert liveness.judge_liveness([suspect]) == {suspect.turn_id: "dead"}
    from dataclasses import replace

    assert liveness.judge_liveness([replace(suspect, young=True)]) == {suspect.turn_id: "live"}
    assert liveness.judge_liveness([replace(suspect, listed=True)]) == {suspect.turn_id: "live"}
    from copilot.worker import heartbeat

    heartbeat.write_redis_heartbeat("gone", [(suspect.turn_id, 1)], life_seconds=6)
    assert liveness.judge_liveness([suspect]) == {suspect.turn_id: "live"}
    assert liveness.judge_liveness([replace(suspect, lock_free=True)]) == {suspect.turn_id: "live"}
    assert liveness.judge_liveness([replace(suspect, fence=2)]) == {suspect.turn_id: "dead"}


def test_a_lease_is_not_put_back_for_a_turn_that_ended_meanwhile(session, monkeypatch):
    """T2.5, T9.6: its worker let the session go before the sweep took it"""
    turn = factories.turn(session, "running", worker="w")
    claim = lease.claim_or_queue

    def slow(*args, **fields):
        Turn.objects.filter(pk=turn.pk).update(status="succeeded", ended_at=factories.timezone.now())
        return claim(*args, **fields)

    monkeypatch.setattr(lease, "claim_or_queue", slow)
    next_turn.restore_session_in_redis(session.pk)
    assert lease_of(session) == {}
