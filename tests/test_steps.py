"""The choice of the next step, as a table (A2.3)."""

from __future__ import annotations

import pytest

from copilot.agent.guards import State
from copilot.agent.steps import Answer, Halt, Nudge, Reply, RunTools, next_step
from copilot.providers.base import ToolCall

CALLS = (ToolCall(call_id="a", tool="look", arguments={}),)
FIRST = State()
AFTER_TOOLS = State(ran_tools=True)
LAST = State(last_round=True, ran_tools=True)


@pytest.mark.parametrize(
    ("text", "calls", "finish", "state", "expected"),
    [
        ("Hello", (), "stop", FIRST, Answer()),
        ("Hello", (), "length", FIRST, Answer(truncated=True)),
        ("Hello", (), "tool_calls", FIRST, Answer()),
        ("", CALLS, "tool_calls", FIRST, RunTools(calls=CALLS)),
        ("", CALLS, "stop", FIRST, RunTools(calls=CALLS)),
        ("Hm", CALLS, "length", FIRST, Nudge(lost=("look",))),
        ("Hm", CALLS, "length", LAST, Nudge(lost=("look",))),
        ("Hm", CALLS, "stop", LAST, Halt(code="round_limit", calls=CALLS)),
        ("", (), "stop", FIRST, Halt(code="no_response")),
        ("", (), "length", FIRST, Halt(code="no_response")),
        ("", (), "stop", AFTER_TOOLS, Answer(silent=True)),
        ("", (), "stop", State(continues_text=True), Answer()),
        ("", (), "stop", State(continues_text=True, ran_tools=True), Answer()),
        ("No.", (), "refused", FIRST, Halt(code="refused")),
        ("", CALLS, "refused", AFTER_TOOLS, Halt(code="refused")),
        ("Hel", (), "overflow", FIRST, Halt(code="context_overflow")),
    ],
)
def test_each_reply_has_exactly_one_next_step(text, calls, finish, state, expected):
    """A2.3"""
    assert next_step(Reply(text=text, calls=calls, finish=finish), state) == expected
