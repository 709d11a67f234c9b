"""Loop safety: what is noticed, what is noted, what ends a turn (A10, A8.3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from copilot.agent.guards import LoopGuards, TurnLimits
from copilot.providers.base import ToolCall, ToolSpecification
from copilot.tools.base import ToolCallOutcome

WRITE = ToolSpecification(name="write", description="", parameters={"required": ["content"]})


def made(tool="look", arguments=None, *, malformed=False):
    return ToolCall(call_id="a", tool=tool, arguments=None if malformed else arguments or {})


def result(content="done"):
    return ToolCallOutcome(
        call_id="a", tool="look", success=True, content=content, preview="", duration_ms=0, truncated=False
    )


def rounds(guards, *observed):
    """What each round, a call and its result, has noted."""
    return [
        guards.record_tool_group([call], {"a": result(content)}, {"write": WRITE})
        for call, content in observed
    ]


def limit(guards, next_round=2, seconds=0.0):
    return guards.find_limit(next_round=next_round, seconds=seconds)


def test_the_third_equal_round_is_noted_once_and_the_sixth_ends_the_turn():
    """A10.c1"""
    guards = LoopGuards(TurnLimits())
    notes = rounds(guards, *[(made(), "same")] * 5)
    assert [len(note) for note in notes] == [0, 0, 1, 0, 0]
    assert limit(guards) is None
    rounds(guards, (made(), "same"))
    assert limit(guards) == "loop_detected"


def test_an_output_that_names_its_call_is_the_same_output():
    """A10.2: what is cut says under which id the rest is read, and every call has another"""
    guards = LoopGuards(TurnLimits())
    for number in range(6):
        call = ToolCall(call_id=f"call_{number}", tool="look", arguments={})
        outcome = replace(result(f'beginning … call_id "call_{number}" … end'), call_id=call.call_id)
        guards.record_tool_group([call], {call.call_id: outcome}, {})
    assert limit(guards) == "loop_detected"


def test_a_changing_result_is_no_loop():
    """A10.c1"""
    guards = LoopGuards(TurnLimits())
    assert not any(rounds(guards, *[(made(), f"result {number}") for number in range(9)]))
    assert limit(guards) is None


def test_a_polling_tool_may_answer_the_same_again_and_again():
    """A10.c1"""
    guards = LoopGuards(TurnLimits(), polling=frozenset({"look"}))
    assert not any(rounds(guards, *[(made(), "running")] * 9))
    assert limit(guards) is None


def test_what_lies_beyond_the_window_is_forgotten():
    guards = LoopGuards(TurnLimits(loop_window=4))
    others = [(made(arguments={"n": number}), "x") for number in range(4)]
    rounds(guards, *[(made(), "same")] * 2, *others)
    assert not any(rounds(guards, *[(made(), "same")] * 2))


def test_the_order_of_keys_makes_no_difference():
    guards = LoopGuards(TurnLimits())
    first, second = made(arguments={"a": 1, "b": 2}), made(arguments={"b": 2, "a": 1})
    assert any(rounds(guards, (first, "x"), (second, "x"), (first, "x")))


@pytest.mark.parametrize("unusable", [made("write", malformed=True), made("write")])
def test_five_unusable_calls_in_a_row_break_the_turn_off(unusable):
    """A10.3"""
    guards = LoopGuards(TurnLimits())
    rounds(guards, *[(unusable, f"{number}") for number in range(4)])
    assert limit(guards) is None
    rounds(guards, (unusable, "fifth"))
    assert limit(guards) == "tool_calls_broken"


def test_a_usable_call_in_between_starts_the_count_again():
    """A10.3, A8.3"""
    guards = LoopGuards(TurnLimits())
    usable = made("write", {"content": "x"})
    broken = made("write", malformed=True)
    notes = rounds(guards, (broken, "1"), (usable, "2"), (broken, "3"))
    assert not any(notes)
    rounds(guards, *[(broken, f"{number}") for number in range(4, 7)])
    assert limit(guards) is None


def test_only_malformed_calls_of_the_same_tool_in_a_row_make_a_note():
    """A8.3"""
    notes = rounds(
        LoopGuards(TurnLimits()),
        (made("write", malformed=True), "1"),
        (made("look", malformed=True), "2"),
        (made("look", malformed=True), "3"),
        (made("look", malformed=True), "4"),
    )
    assert [len(note) for note in notes] == [0, 0, 1, 0]
    assert "look" in notes[2][0]


def test_empty_arguments_are_fine_where_none_are_required():
    guards = LoopGuards(TurnLimits())
    rounds(guards, *[(made("look"), f"{number}") for number in range(9)])
    assert limit(guards) is None


def test_rounds_and_seconds_are_counted_to_their_limits():
    """A10.1, A10.5"""
    guards = LoopGuards(TurnLimits(max_rounds=3, max_seconds=60))
    assert limit(guards, next_round=3, seconds=59.9) is None
    assert limit(guards, next_round=4) == "round_limit"
    assert limit(guards, next_round=3, seconds=60) == "time_limit"
    assert [guards.is_last_round(number) for number in (2, 3)] == [False, True]
