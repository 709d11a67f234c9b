"""The choice of the next step, as a table (A2.3)."""

from __future__ import annotations

import pytest

from copilot.agent.guards import RoundState
from copilot.agent.model_stream import (
    AnswerStep,
    HaltStep,
    LostCallsStep,
    ModelReply,
    RunToolsStep,
    choose_next_step,
)
from copilot.providers.base import ToolCall

CALLS = (ToolCall(call_id="a", tool="look", arguments={}),)
FIRST = RoundState()
AFTER_TOOLS = RoundState(ran_tools=True)
LAST = RoundState(last_round=True, ran_tools=True)


@pytest.mark.parametrize(
    ("text", "calls", "finish", "state", "expected"),
    [
        ("Hello", (), "stop", FIRST, AnswerStep()),
        ("Hello", (), "length", FIRST, AnswerStep(truncated=True)),
        ("Hello", (), "tool_calls", FIRST, AnswerStep()),
        ("", CALLS, "tool_calls", FIRST, RunToolsStep(calls=CALLS)),
        ("", CALLS, "stop", FIRST, RunToolsStep(calls=CALLS)),
        ("Hm", CALLS, "length", FIRST, LostCallsStep(lost=("look",))),
        ("Hm", CALLS, "length", LAST, LostCallsStep(lost=("look",))),
        ("Hm", CALLS, "stop", LAST, HaltStep(code="round_limit", calls=CALLS)),
        ("", (), "stop", FIRST, HaltStep(code="no_response")),
        ("", (), "length", FIRST, HaltStep(code="no_response")),
        ("", (), "stop", AFTER_TOOLS, AnswerStep(silent=True)),
        ("", (), "stop", RoundState(continues_text=True), AnswerStep()),
        ("", (), "stop", RoundState(continues_text=True, ran_tools=True), AnswerStep()),
        ("No.", (), "refused", FIRST, HaltStep(code="refused")),
        ("", CALLS, "refused", AFTER_TOOLS, HaltStep(code="refused")),
        ("Hel", (), "overflow", FIRST, HaltStep(code="context_overflow")),
    ],
)
def test_each_reply_has_exactly_one_next_step(text, calls, finish, state, expected):
    """A2.3"""
    assert choose_next_step(ModelReply(text=text, calls=calls, finish=finish), state) == expected
