"""What a model thinks is shown and kept, and is part of nothing else (A14)."""

from __future__ import annotations

import json

import pytest

from copilot.chat import goals
from copilot.models import Message
from copilot.providers.scripted import ScriptedCall, ScriptedReasoning, ScriptedText
from tests.support import factories
from tests.support.rest_clients import V1, program
from tests.support.turn_engine import command, ended, quiet, start

THOUGHT = "zebra-crossing"


@pytest.fixture
def session(rig):
    return factories.session()


def test_it_is_part_of_no_answer_and_of_no_search(session, model):
    """A14.6: the waiter's text, and what is found by words"""
    model.will(ScriptedReasoning(f"Perhaps {THOUGHT}?"), ScriptedText("The answer."))
    turn = ended(start(session))
    assert Message.objects.get(turn=turn, kind="reasoning").content == f"Perhaps {THOUGHT}?"
    door = program(factories.ada())
    assert door.get(f"{V1}/turns/{turn.pk}/wait").json()["text"] == "The answer."
    assert THOUGHT not in door.get(f"{V1}/turns/{turn.pk}/wait").content.decode()
    assert door.get(f"{V1}/sessions?q={THOUGHT}").json()["items"] == []


def test_neither_titles_nor_goals_are_judged_by_it(rig, model, small, session):
    """A14.6"""
    model.will(ScriptedReasoning(f"Perhaps {THOUGHT}?"), ScriptedText("The answer."))
    small.always(ScriptedText('{"achieved": true, "reason": "done", "next_step": ""}'))
    goals.set_goal_and_start(command(session, "Write a poem"))
    quiet(session)
    rig.run_errands(2)
    assert len(small.requests) >= 2
    assert "The answer." in repr(small.requests)
    assert THOUGHT not in repr(small.requests)


def test_a_parent_does_not_read_what_its_child_thought(session, model):
    """A14.6, A21.5"""
    model.will(ScriptedCall("run_sub_session", {"prompt": "Look into it"}))
    model.will(ScriptedReasoning(f"Perhaps {THOUGHT}?"), ScriptedText("It is dry."))
    turn = ended(start(session))
    result = Message.objects.get(turn=turn, kind="tool_result").content
    assert json.loads(result)["text"] == "It is dry."
    assert THOUGHT not in result


@pytest.mark.parametrize(
    ("mode", "tokens", "asked"), [("fast", 8_192, 0), ("deep", 8_192, 8_192), ("deep", 0, 0)]
)
def test_a_fast_turn_and_a_switch_turned_off_ask_for_no_thinking(
    session, model, settings, mode, tokens, asked
):
    """A14.5: nothing of it reaches any wire then (A14.c2)"""
    settings.THINKING_TOKENS = tokens
    ended(start(session, mode=mode))
    assert model.requests[0].thinking_tokens == asked
