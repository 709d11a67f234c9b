"""What calls leave behind: one row and one record each, whatever becomes of them (A19, B4.1)."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.db import OperationalError
from django.db.models.functions import Now

from billing.models import UsageRecord
from config import beat_schedule
from copilot import metrics, tasks
from copilot.agent import usage
from copilot.agent.usage import ModelCallRecorder
from copilot.chat import branches, model_calls, side_questions, stop
from copilot.models import ModelCall, Session, Turn
from copilot.providers.scripted import ScriptedText, ScriptedUsage
from copilot.realtime.payloads import Tokens
from copilot.worker import recovery
from tests.support import factories
from tests.support.agent_doubles import ManualClock
from tests.support.rest_clients import V1, program
from tests.support.turn_engine import (
    answer,
    cue,
    ended,
    log_of,
    quiet,
    start,
    until,
    wait_until_side_question_ended,
)


@pytest.fixture(name="session")
def session_fixture(rig) -> Session:
    return factories.session()


def assert_one_record_each(purposes: list[str]) -> None:
    """Of every call that was made, under the same id, with what billing answered."""
    calls = list(ModelCall.objects.order_by("created_at"))
    assert sorted(call.purpose for call in calls) == sorted(purposes)
    records = {record.call_id: record for record in UsageRecord.objects.all()}
    assert set(records) == {call.pk for call in calls}
    for call in calls:
        record = records[call.pk]
        assert (call.cost_microdollars, call.cost_source) == (record.cost_microdollars, record.cost_source)
        assert (call.purpose, call.input_tokens) == (record.purpose, record.input_tokens)
        assert call.ended_at is not None


def test_every_call_leaves_one_row_and_one_record(rig, small, session):
    """A19.1, B4.1: the answer, its title and a side question"""
    for scripted, figures in ((rig.model, Tokens(input=30, output=4)), (small, Tokens(input=8, output=2))):
        scripted.will(ScriptedText("A conical pin."), ScriptedUsage(figures))
    turn = ended(start(session, "What is a fid?"))
    rig.run_errands()
    rig.model.will(ScriptedText("Wood."), ScriptedUsage(Tokens(input=40, output=1)))
    wait_until_side_question_ended(side_questions.ask_side_question(session.owner_id, session.pk, "Of what?"))
    assert_one_record_each(["reply", "title", "side"])
    reply = ModelCall.objects.get(purpose="reply")
    assert (reply.turn_id, reply.number, reply.model) == (turn.pk, 1, "standard")
    assert (reply.input_tokens, reply.output_tokens, reply.estimated, reply.aborted) == (30, 4, False, False)
    assert reply.latency_ms is not None
    assert reply.first_token_ms is not None
    assert ModelCall.objects.get(purpose="side").session_id == session.pk


def test_a_record_that_fails_is_made_later_and_costs_no_answer(rig, model, session, monkeypatch):
    """A19.6: repeated under the same id"""
    record, failures = model_calls._record_cost, [OperationalError("gone"), OperationalError("still gone")]

    def failing(spent):
        if failures:
            raise failures.pop()
        return record(spent)

    monkeypatch.setattr("copilot.agent.usage.FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(model_calls, "_record_cost", failing)
    model.will(ScriptedText("Aye."), ScriptedUsage(Tokens(input=30, output=4)))
    turn = ended(start(session))
    assert (turn.status, answer(turn.pk)) == ("succeeded", "Aye.")
    until(lambda: UsageRecord.objects.exists())
    until(lambda: not ModelCall.objects.filter(ended_at=None).exists())
    assert_one_record_each(["reply"])


def test_a_record_that_fails_for_an_hour_is_left_to_the_sweep(session, monkeypatch, caplog):
    """A19.6, B5.2: it is tried ever less often, then given up with a word in the log, and still counted once"""
    call_id, clock = uuid4(), ManualClock()
    monkeypatch.setattr(usage.log, "warning", lambda *event, **fields: None)  # seventy times the same
    factories.message(session, content="What it was asked about. " * 20)
    model_calls.start_side_question_call(call_id, session.pk, "scripted", "demo")
    call = ModelCall.objects.get(pk=call_id)
    tried: list[model_calls.FinishedCall] = []

    def away(spent: model_calls.FinishedCall) -> str:
        tried.append(spent)
        raise OperationalError("gone")

    with monkeypatch.context() as outage:
        outage.setattr(model_calls, "finish_model_call", away)
        assert asyncio.run(usage.record_usage(_spent(call, "scripted", cost=None), clock)) == ""
    assert clock.slept[:4] == [0.5, 1, 2, 4]
    assert max(clock.slept) == 60
    assert 3_600 < sum(clock.slept) <= 3_660
    assert {spent.call_id for spent in tried} == {call_id}
    assert [record.message for record in caplog.records if "billing_leak" in record.message] != []
    assert not UsageRecord.objects.exists()
    ModelCall.objects.filter(pk=call_id).update(created_at=Now() - timedelta(minutes=70))
    assert recovery.record_calls_of_lost_workers(looked_before=True) == 1
    assert UsageRecord.objects.get().call_id == call_id


def test_a_call_that_was_made_long_after_its_turn_is_counted_within_the_hour(session):
    """B4.1: its background job waited, or the database was down when the sweep would have looked"""
    turn = factories.turn(session, Turn.Status.SUCCEEDED)
    title = model_calls.start_call_after_turn(turn.pk, "title", "scripted", "demo")
    Turn.objects.filter(pk=turn.pk).update(ended_at=Now() - timedelta(hours=3))
    ModelCall.objects.filter(pk=title).update(created_at=Now() - timedelta(minutes=12))
    assert recovery.record_calls_of_lost_workers(looked_before=True) == 0
    assert "copilot.tasks.record_forgotten_calls" in {
        job["task"] for job in beat_schedule.build_beat_schedule().values()
    }
    tasks.record_forgotten_calls()
    assert UsageRecord.objects.get(pk=title).purpose == "title"
    assert not ModelCall.objects.filter(ended_at=None).exists()


def test_abandoned_calls_are_counted_by_the_sweep(session):
    """A19.6, B4.1: a title and a side question whose process died; calls that may still run are left alone"""
    turn = factories.turn(session, Turn.Status.SUCCEEDED)
    title = model_calls.start_call_after_turn(turn.pk, "title", "scripted", "demo")
    aside, running = uuid4(), uuid4()
    for call_id in (aside, running):
        model_calls.start_side_question_call(call_id, session.pk, "scripted", "demo")
    long_ago = Now() - timedelta(minutes=12)
    Turn.objects.filter(pk=turn.pk).update(ended_at=long_ago)
    ModelCall.objects.filter(pk__in=[title, aside]).update(created_at=long_ago)
    assert recovery.record_calls_of_lost_workers(looked_before=True) == 2
    assert recovery.record_calls_of_lost_workers(looked_before=True) == 0
    lost = ModelCall.objects.exclude(pk=running)
    assert {(call.aborted, call.estimated) for call in lost} == {(True, True)}
    assert list(ModelCall.objects.filter(ended_at=None)) == [ModelCall.objects.get(pk=running)]
    assert UsageRecord.objects.get(pk=title).purpose == "title"


def test_a_cost_that_is_not_told_is_noted_once_a_turn(rig, model, session, caplog):
    """A19.4: of servers that could tell it; vendors whose protocol has no such field are not complained of"""
    ended(start(session))
    [call] = ModelCall.objects.all()
    book = ModelCallRecorder.__new__(ModelCallRecorder)
    book._warned = False
    with caplog.at_level(logging.WARNING, logger="copilot.agent.usage"):
        for provider in ("anthropic", "openai_chat", "openai_chat"):
            book._warn_missing_cost(_spent(call, provider, cost=None), "CATALOGUE")
        book._warn_missing_cost(_spent(call, "openai_chat", cost="0.1"), "REPORTED")
    assert len(caplog.records) == 1


def _spent(call: ModelCall, provider: str, *, cost: str | None) -> model_calls.FinishedCall:
    return model_calls.FinishedCall(
        call_id=call.pk,
        turn_id=call.turn_id,
        session_id=uuid4(),
        user_id=0,
        ended_at=call.created_at,
        provider=provider,
        model=call.model,
        tokens=Tokens(),
        cost=cost,
        estimated=False,
        aborted=False,
        refused_before_work=False,
        latency_ms=0,
        first_token_ms=None,
        response_id="",
    )


def test_what_a_turn_took_so_far_is_read_from_its_calls(session):
    """A3.6, A10.1, A2.4: summaries are no rounds"""
    turn = factories.turn(session, "running")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    calls = [
        {"ending": "cut", "output_tokens": 5, "latency_ms": 3_000, "first_token_ms": 1_000},
        {"ending": "called", "output_tokens": 7, "input_tokens": 2},
        {"aborted": True, "output_tokens": 1},
        {"ending": "context_overflow"},
        {"purpose": "compaction", "ending": "answered", "output_tokens": 100},
        {"purpose": "compaction", "aborted": True},
    ]
    for number, fields in enumerate(calls, start=1):
        ModelCall.objects.create(turn=turn, number=number, provider="p", model="m", ended_at=at, **fields)
    ModelCall.objects.create(turn=turn, number=7, provider="p", model="m")
    ModelCall.objects.update(created_at=at)
    assert model_calls.get_earlier_usage(turn.pk) == model_calls.EarlierUsage(
        rounds=1,
        cut_texts=1,
        tokens=Tokens(input=2, output=13),
        generation_seconds=2.0,
        first_token_at=at + timedelta(seconds=1),
    )


def test_a_stop_in_the_stream_is_recorded_with_the_input_that_was_announced(rig, model, session):
    """A19.c2, B4.c5: as Anthropic does at the start of a message"""
    model.will(
        ScriptedUsage(Tokens(input=50, cache_read=7, output=1)), ScriptedText("Half an answer, and"), cue(1)
    )
    turn_id = start(session)
    model.reaches(1)
    stop.stop_session(session.owner_id, session.pk)
    assert ended(turn_id).status == "cancelled"
    quiet(session)
    [call] = ModelCall.objects.filter(turn=turn_id)
    assert (call.aborted, call.input_tokens, call.cache_read_tokens) == (True, 50, 7)
    assert call.output_tokens == 5
    assert_one_record_each(["reply"])


MONEY = ("cost", "microdollars", "price")
OWN_CAP = {"cap_microdollars", "estimate_microdollars", "remaining_cap_microdollars"}  # A11.11


def money_in(value: object) -> set[str]:
    """Every key that speaks of money, at any depth."""
    if isinstance(value, dict):
        own = {key for key in value if any(word in key for word in MONEY)} - OWN_CAP
        return own.union(*(money_in(one) for one in value.values())) if value else own
    return set().union(*(money_in(one) for one in value)) if isinstance(value, list) and value else set()


def test_only_staff_see_costs(rig, model, session):
    """A19.c2, A19.8: no key of it in any event of a turn, nor in any body about it"""
    model.will(ScriptedText("Aye."), ScriptedUsage(Tokens(input=30, output=4)))
    turn_id = start(session)
    ended(turn_id)
    quiet(session)
    client = program(factories.ada())
    paths = [
        "sessions",
        f"sessions/{session.pk}",
        f"sessions/{session.pk}/messages",
        f"turns/{turn_id}",
        "models",
    ]
    bodies = [client.get(f"{V1}/{path}").json() for path in paths]
    told = [json.loads(entry.payload) for entry in log_of(session.pk)]
    assert {one["kind"] for one in told} >= {"usage.recorded", "turn.succeeded"}
    assert money_in(bodies) | money_in(told) == set()


@pytest.mark.parametrize(
    ("reason", "act"),
    [
        ("shape", lambda session: Session.objects.filter(pk=session.pk).update(instructions="Be brief.")),
        ("undo", lambda session: branches.undo_last_turn(session.owner_id, session.pk)),
    ],
)
def test_what_breaks_the_prefix_between_two_turns_is_counted(rig, model, session, reason, act):
    """A15.9, A15.11: once, with its reason; an ordinary turn breaks nothing"""
    ended(start(session, "One"))
    quiet(session)
    before = {
        name: metrics.prefix_breaks.labels(name)._value.get() for name in ("shape", "undo", "model_switch")
    }
    ended(start(session, "Two"))
    quiet(session)
    act(session)
    ended(start(session, "Three"))
    broken = {name: metrics.prefix_breaks.labels(name)._value.get() - count for name, count in before.items()}
    assert broken == {"shape": 0, "undo": 0, "model_switch": 0, reason: 1}
