"""Turns that stand as running although nobody runs them: each way there, and the way out within seconds (D2, D10, T9)."""

from __future__ import annotations

import asyncio

import pytest
from django.db import DatabaseError, InterfaceError, OperationalError

from copilot.agent import endings as agent_endings
from copilot.agent import runner
from copilot.chat import selectors as chat_selectors
from copilot.chat import stop, turn_transitions, turns
from copilot.models import Turn, WorkerHeartbeat
from copilot.providers.scripted import ScriptedCall, ScriptedHang, ScriptedText
from copilot.realtime import lease, publisher
from copilot.worker import heartbeat, liveness, recovery, turn_worker
from diagnostics import reaper, tasks
from tests.support import factories
from tests.support.turn_engine import (
    Errand,
    add_tools,
    answer,
    cue,
    ended,
    endings,
    quiet,
    start,
    status,
    told,
    until,
)


@pytest.fixture(autouse=True)
def _forget():
    reaper._state.suspected = {}
    reaper._state.slow_sweep_at = 0.0


@pytest.fixture
def session(rig):
    return factories.session()


def grow_old(turn_id):
    """Longer ago than a heartbeat lives: a turn that is not listed now has no worker."""
    Turn.objects.filter(pk=turn_id).update(attempt_started_at="2026-01-01T00:00:00Z")


def listed(rig):
    """What the living worker says it runs, in both places."""
    in_redis = heartbeat.read_redis_heartbeats([rig.worker.name], life_seconds=6)[rig.worker.name].turns
    in_postgres = WorkerHeartbeat.objects.get(pk=rig.worker.name).turns
    return {turn_id for turn_id, _ in (*in_redis, *in_postgres)}


def taken_over(rig, turn_id):
    """Once it is old enough to be judged, one look finds it, and it comes to its end."""
    grow_old(turn_id)
    until(lambda: str(turn_id) not in listed(rig))
    assert reaper.take_over_dead_turns() == 1
    return ended(turn_id)


# --- claimed, and not run ----------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [OperationalError, InterfaceError, ValueError])
def test_a_claim_whose_answer_was_lost(rig, session, monkeypatch, problem):
    """T5.1: the row says running, and the worker that claimed it does not know"""
    claim = turns.claim_turns

    def lost(*args, **fields):
        claim(*args, **fields)
        monkeypatch.setattr(turns, "claim_turns", claim)
        raise problem("the answer was lost")

    monkeypatch.setattr(turns, "claim_turns", lost)
    turn_id = start(session)
    until(lambda: status(turn_id) == "running")
    assert taken_over(rig, turn_id).status == "succeeded"
    until(lambda: rig.worker.free_slots() == rig.worker.all_slots())


def test_a_run_that_cannot_even_begin(rig, session, monkeypatch):
    """T5.1: its neighbours of the same claim begin all the same"""
    run = runner.TurnRunner
    unlucky: list[object] = []

    def refuse(turn, *given):
        if not unlucky:
            unlucky.append(turn.turn_id)
            raise RuntimeError("no memory for this one")
        return run(turn, *given)

    monkeypatch.setattr(turn_worker, "TurnRunner", refuse)
    rig.hold_tasks()
    first, second = start(session), start(factories.session())
    rig.worker.take_together(first, second)
    until(lambda: unlucky)
    [lucky] = {first, second} - set(unlucky)
    assert ended(lucky).status == "succeeded"
    rig.run_tasks()
    assert taken_over(rig, unlucky[0]).status == "succeeded"
    until(lambda: rig.worker.free_slots() == rig.worker.all_slots())


# --- run, and left without an ending -----------------------------------------------------------------


def test_a_run_that_an_outage_ended(rig, session, model, monkeypatch):
    """T9.3: it continues elsewhere, and nothing is said twice"""
    model.will(ScriptedText("Half "), cue(1))
    model.will(ScriptedText("whole."))
    end = turn_transitions.end_turn
    turn_id = start(session)
    model.reaches(1)

    def away(*args, **fields):
        monkeypatch.setattr(turn_transitions, "end_turn", end)
        raise DatabaseError("the server is away")

    monkeypatch.setattr(turn_transitions, "end_turn", away)
    model.give(1)
    until(lambda: not rig.worker.running())
    assert taken_over(rig, turn_id).status == "succeeded"


def test_final_writes_that_take_too_long(rig, session, model, monkeypatch):
    """A1.7: the run is left, and the sweep ends the turn"""
    monkeypatch.setattr(agent_endings, "FINAL_WRITES_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(agent_endings, "end_stopped", never)
    model.will(ScriptedText("Talking"), ScriptedHang())
    turn_id = start(session)
    until(lambda: told(session.pk, "text.extended"))
    stop.stop_session(session.owner_id, session.pk)
    until(lambda: not rig.worker.running())
    assert taken_over(rig, turn_id).status == "cancelled"


def test_a_run_that_does_not_obey_is_no_longer_listed(rig, session, model, monkeypatch):
    """D2: a tool that ignores its cancellation holds the coroutine, not the turn"""
    monkeypatch.setattr(turn_worker, "INTERRUPT_TIMEOUT_SECONDS", 0.2)
    errand = Errand("stubborn", stubborn=True)
    add_tools(monkeypatch, errand)
    model.will(ScriptedCall("stubborn"))
    turn_id = start(session)
    until(lambda: errand.runs)
    rig.worker.interrupt(turn_id, "idle_timeout")
    until(lambda: str(turn_id) not in listed(rig))
    grow_old(turn_id)
    assert reaper.take_over_dead_turns() == 1
    assert ended(turn_id).status == "succeeded"
    errand.cue.give()
    until(lambda: not rig.worker.running())
    assert endings(session.pk) == ["turn.succeeded"]


# --- taken over by the very process that lost it -----------------------------------------------------


def test_an_older_run_that_ends_does_not_take_the_newer_one_with_it(rig, session, model):
    """T4.3: both are runs of one turn in one process"""
    model.will(ScriptedText("First "), cue(1))
    model.will(ScriptedText("second "), cue(2), ScriptedText("third."))
    turn_id = start(session)
    model.reaches(1)
    [suspect] = liveness.list_turn_evidence()
    assert recovery.take_over_turn(suspect)
    model.reaches(2)
    model.give(1)
    until(lambda: rig.worker.free_slots() == rig.worker.all_slots() - 1)
    assert rig.worker.running() == {str(turn_id)}
    model.give(2)
    assert ended(turn_id).status == "succeeded"
    assert answer(turn_id) == "First second third."


def test_an_older_runs_refusal_does_not_interrupt_the_newer_one(rig, session, model):
    """T4.1: what it still has to tell is thrown away, and nothing else"""
    model.will(ScriptedText("First "), cue(1))
    model.will(ScriptedText("second."), cue(2))
    turn_id = start(session)
    model.reaches(1)
    older = rig.worker.engine._runs[str(turn_id)]
    [suspect] = liveness.list_turn_evidence()
    assert recovery.take_over_turn(suspect)
    model.reaches(2)
    rig.worker.publish(older, "late news")
    until(lambda: not older.outbox.waiting)
    model.give(1)
    model.give(2)
    assert ended(turn_id).status == "succeeded"
    assert "late news" not in repr(told(session.pk))


# --- a loop that all turns of the process rest on ----------------------------------------------------


def test_a_publisher_continues_after_an_unexpected_error(rig, session, monkeypatch):
    """A3.8: a closed transport raises what no client library names"""
    evaluate = publisher._run_publish_script
    surprises: list[int] = []

    async def surprised(*args):
        if len(surprises) < 3:
            surprises.append(1)
            raise RuntimeError("unable to perform operation on a closed transport")
        return await evaluate(*args)

    monkeypatch.setattr(publisher, "_run_publish_script", surprised)
    assert ended(start(session)).status == "succeeded"
    assert len(surprises) == 3
    quiet(session)


def test_a_chore_that_met_a_surprise_comes_again(rig, session, model, monkeypatch):
    """T4.2: leases are renewed, whatever the last renewal met"""
    rounds = []

    async def chore():
        rounds.append(1)
        if len(rounds) == 1:
            raise KeyError("surprise")

    rig.worker.keep(rig.worker.engine._repeat(0.01, chore))
    until(lambda: len(rounds) > 2)


# --- a reaper that is kept from its work -------------------------------------------------------------


def dead_turns(number):
    made = [factories.turn(factories.session(), "running", worker="gone", attempts=1) for _ in range(number)]
    Turn.objects.filter(worker="gone").update(attempt_started_at="2026-01-01T00:00:00Z")
    return made


def test_one_turn_that_cannot_be_healed_keeps_no_other_waiting(transactional_db, monkeypatch):
    """D10: the oldest is looked at first, every time"""
    lease.mark_epoch()
    poisoned, healthy = dead_turns(2)
    Turn.objects.filter(pk=poisoned.pk).update(attempt_started_at="2025-01-01T00:00:00Z")
    read = chat_selectors.build_snapshot

    def snapshot(session_id, *, reset=False):
        if session_id == poisoned.session_id:
            raise ValueError("a row that cannot be read")
        return read(session_id, reset=reset)

    monkeypatch.setattr(chat_selectors, "build_snapshot", snapshot)
    reaper.take_over_dead_turns()
    assert {status(poisoned.pk), status(healthy.pk)} == {"queued"}


def test_a_sweep_that_never_ends_keeps_no_dead_workers_turn_waiting(transactional_db, monkeypatch):
    """D10: looked for before, between and after its steps"""
    [turn] = dead_turns(1)
    seen = []
    monkeypatch.setattr(reaper, "SWEEP_STEPS", (lambda: seen.append(status(turn.pk)),))
    tasks.reap()
    assert seen == ["queued"]


def test_a_mass_death_that_grows_is_acted_upon(transactional_db):
    """A-D10.6: what looked dead in both ticks is; what is new and no mass by itself needs no second"""
    dead_turns(20)
    assert reaper.take_over_dead_turns() == 0
    dead_turns(5)
    reaper._state.ticks += 1
    assert reaper.take_over_dead_turns() == 20
    assert reaper.take_over_dead_turns() == 5


async def never(*args):
    await asyncio.Event().wait()
