"""Whatever happens in a turn, its parts are well-formed: blocks apart, text in steps, one ending (E4.1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from copilot.ai_sdk.views import UIMessageWriter
from copilot.realtime.events import (
    ArtifactAdded,
    ReasoningEnded,
    ReasoningExtended,
    StepFinished,
    StepRetracted,
    StepStarted,
    TextEnded,
    TextExtended,
    TodosChanged,
    ToolCalled,
    ToolFinished,
    ToolProposed,
    TurnCancelled,
    TurnFailed,
    TurnPaused,
    TurnStarted,
    TurnSucceeded,
    TurnSummary,
)
from copilot.realtime.payloads import Tokens
from tests.support.ui_messages import assert_well_formed_parts

SUMMARY = TurnSummary(
    duration_ms=1, first_token_ms=None, tokens_per_second=None, rounds=1, tokens=Tokens(), model="m"
)
ENDINGS = [
    TurnSucceeded(run_ids=[], summary=SUMMARY),
    TurnPaused(approvals=[]),
    TurnFailed(run_ids=[], code="overloaded", notice_id=None),
    TurnCancelled(run_ids=[], reason="user"),
]
names = st.sampled_from(["a", "b", "c"])
offsets = st.integers(0, 6)
words = st.sampled_from(["", "x", "yz"])
happened = st.one_of(
    st.builds(TextExtended, block_id=names, row_id=names.map("t".__add__), offset=offsets, delta=words),
    st.builds(ReasoningExtended, block_id=names, row_id=names.map("r".__add__), offset=offsets, delta=words),
    st.builds(TextEnded, block_id=names, row_id=names.map("t".__add__)),
    st.builds(ReasoningEnded, block_id=names, row_id=names.map("r".__add__)),
    st.builds(StepStarted, step_id=names, round=st.just(1)),
    st.builds(StepFinished, step_id=names, round=st.just(1), finish_reason=st.just("stop")),
    st.builds(StepRetracted, step_id=names, round=st.just(1), failure_class=st.just("overloaded")),
    st.builds(ToolProposed, call_id=names, tool=names),
    st.builds(ToolCalled, call_id=names, tool=names, row_id=names, arguments=st.just({"q": "1"})),
    st.builds(
        ToolFinished,
        call_id=names,
        row_id=names,
        success=st.booleans(),
        duration_ms=st.just(1),
        preview=words,
        truncated=st.just(False),
    ),
    st.builds(ArtifactAdded, file_id=names, name=names, type=st.just("text/plain"), size=st.just(1)),
    st.just(TodosChanged(items=[])),
    st.just(TurnStarted(model="m", tier="", mode="", resumed=False, run_ids=[])),
    st.sampled_from(ENDINGS),
)


@given(st.lists(happened, max_size=40), st.sampled_from(ENDINGS))
def test_any_order_of_events_gives_well_formed_parts(events, ending):
    """E4.1"""
    parts = UIMessageWriter("m")
    told = [*parts.begin(), *(part for event in [*events, ending] for part in parts.convert_event(event))]
    assert_well_formed_parts(told)
    assert told[-1]["type"] in ("finish", "error", "abort")


@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=8), st.integers(0, 7))
def test_an_event_told_twice_says_nothing_new(deltas, again):
    """E4.1"""
    events, text = [], ""
    for delta in deltas:
        events.append(TextExtended(block_id="b", row_id="r", offset=len(text), delta=delta))
        text += delta
    parts = UIMessageWriter("m")
    told = [part for event in [*events[:again], *events] for part in parts.convert_event(event)]
    assert "".join(part["delta"] for part in told if part["type"] == "text-delta") == text
