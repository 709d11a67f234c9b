"""Each call's cost is recorded as it ends, whatever becomes of the turn, and is never in the answer's way (A19.6)."""

from __future__ import annotations

import pytest
from django.db import OperationalError

from billing.models import UsageRecord
from billing.usage import usage_records
from copilot.chat import stop
from copilot.models import ModelCall
from copilot.providers.scripted import ScriptedCall, ScriptedFailure, ScriptedText, ScriptedUsage
from copilot.realtime.payloads import Tokens
from tests.support import factories
from tests.support.turn_engine import Errand, add_tools, answer, cue, ended, start, until

USED = ScriptedUsage(Tokens(input=100, output=10))


@pytest.fixture
def session(rig):
    return factories.session()


def recorded(turn_id) -> bool:
    """One record for each call, under the call's own id."""
    calls = set(ModelCall.objects.filter(turn=turn_id).values_list("pk", flat=True))
    return calls == set(UsageRecord.objects.values_list("call_id", flat=True))


def test_a_record_that_fails_is_repeated_and_the_answer_does_not_suffer(session, model, monkeypatch):
    """A19.6: under the same call id, so that it counts once"""
    record = usage_records.record_usage
    refused: list[object] = []

    def away_at_first(*args, **fields):
        if len(refused) < 2:
            refused.append(fields)
            raise OperationalError("the server is away")
        return record(*args, **fields)

    monkeypatch.setattr(usage_records, "record_usage", away_at_first)
    model.will(ScriptedText("Here it is."), USED)
    turn = ended(start(session))
    assert (turn.status, answer(turn.pk)) == ("succeeded", "Here it is.")
    until(lambda: recorded(turn.pk))
    assert len(refused) == 2


def test_a_call_is_recorded_while_its_turn_still_runs(session, model, monkeypatch):
    """A19.6: as it ends, not as the turn does"""
    add_tools(monkeypatch, Errand("fetch"))
    model.will(ScriptedCall("fetch"), USED)
    model.will(ScriptedText("Half"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: UsageRecord.objects.filter(input_tokens=100).exists())
    model.give(1)
    ended(turn_id)


@pytest.mark.parametrize("fate", ["failed", "cancelled"])
def test_it_is_recorded_whatever_becomes_of_the_turn(session, model, monkeypatch, fate):
    """A19.6, T9.6"""
    add_tools(monkeypatch, Errand("fetch"))
    model.will(ScriptedCall("fetch"), USED)
    model.will(ScriptedText("Half"), USED, cue(1), ScriptedFailure("bad_request"))
    turn_id = start(session)
    model.reaches(1)
    if fate == "cancelled":
        stop.stop_session(session.owner_id, session.pk)
    else:
        model.give(1)
    assert ended(turn_id).status == fate
    until(lambda: recorded(turn_id))
    assert UsageRecord.objects.count() == 2
