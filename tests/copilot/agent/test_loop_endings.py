"""How a loop ends: answers, limits, failures and what is tried before (A2.4, A2.5, A7, A10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from copilot.agent.guards import CONTINUE_TEXT_NOTE, TurnLimits
from copilot.agent.loop import CLOSING_LINE
from copilot.agent.outputs import (
    LoopAnswered,
    LoopFailed,
    ModelCallEnded,
    ModelCallStarted,
    NoteAdded,
    NoticeAdded,
    ToolResultAdded,
)
from copilot.providers.base import (
    AssistantMessage,
    ImagePart,
    ProviderFailure,
    ReasoningDelta,
    ReplyFinished,
    TextDelta,
    UsageReported,
)
from copilot.realtime.events import (
    ModelRetrying,
    StepFinished,
    StepRetracted,
    StepStarted,
    TextExtended,
    TextStarted,
)
from copilot.realtime.payloads import Tokens
from copilot.tools.calls import ROUND_LIMIT_MESSAGE
from tests.support.agent_doubles import InMemoryBudget, InMemoryToolbox, ManualClock
from tests.support.agent_loop import (
    ENTRY,
    Reciter,
    assert_well_ordered,
    call,
    calls,
    kept,
    kinds,
    look,
    loop_of,
    of,
    outcome,
    play,
    say,
)


async def test_a_reply_without_text_or_calls_is_tried_once_more_and_then_fails():
    """A2.5, A7.1"""
    clock = ManualClock()
    reciter = Reciter([ReasoningDelta("hm"), ReplyFinished("stop")], [ReplyFinished("stop")])
    parts = await play(loop_of(reciter, clock=clock))
    assert parts[-1] == LoopFailed(code="no_response")
    assert len(clock.slept) == len(of(parts, ModelRetrying)) == 1
    assert_well_ordered(parts)


async def test_a_stream_that_ends_without_an_ending_is_malformed_and_one_without_anything_no_response():
    for lines, code in (([TextDelta("Hal")], "malformed_stream"), ([], "no_response")):
        parts = await play(loop_of(Reciter(lines, lines)))
        assert parts[-1].code == code
        assert_well_ordered(parts)


async def test_tools_that_end_in_silence_get_one_closing_line_inside_the_step():
    """A14.c2, A14.7"""
    loop = loop_of(
        Reciter(calls(call("a", "look"), text="Looking."), [TextDelta("\n"), ReplyFinished("stop")])
    )
    parts = await play(loop)
    assert kinds(parts)[-5:] == [
        "text.started",
        "text.extended",
        "text.ended",
        "step.finished",
        "LoopAnswered",
    ]
    assert of(parts, TextExtended)[-1].delta == CLOSING_LINE
    assert [part.synthetic for part in of(parts, TextStarted)] == [False, True]
    assert len(of(parts, ModelCallStarted)) == 2
    assert_well_ordered(parts)


async def test_text_cut_by_the_output_limit_is_kept_and_said_so():
    """A2.4: in its row, for the next request, and in one notice"""
    loop = loop_of(Reciter(say("Once upon", finish="length")), limits=TurnLimits(continuations=0))
    parts = await play(loop)
    assert [notice.code for notice in of(parts, NoticeAdded)] == ["output_truncated"]
    assert [row.content for row in kept(parts) if row.kind == "assistant"] == ["Once upon"]
    assert loop.messages[-1].text == "Once upon"
    assert parts[-1] == LoopAnswered()


async def test_a_text_cut_by_the_output_limit_continues_in_its_row():
    """A2.4: one step, one row, one answer; the model reads its own words and where they stop"""
    reciter = Reciter(say("Once up", finish="length"), say("\non a ti", finish="length"), say("me."))
    loop = loop_of(reciter, thinking_tokens=4_096, chain=(replace(ENTRY, can_reason=True),))
    parts = await play(loop)
    assert [row.content for row in kept(parts) if row.kind == "assistant"] == ["Once up\non a time."]
    assert loop.messages[-1] == AssistantMessage(text="Once up\non a time.")
    assert [request.messages[-2].text for request in reciter.requests[1:]] == ["Once up", "Once up\non a ti"]
    assert [CONTINUE_TEXT_NOTE in request.messages[-1].text for request in reciter.requests] == [
        False,
        True,
        True,
    ]
    assert [request.thinking_tokens for request in reciter.requests] == [4_096, 0, 0]
    assert not of(parts, NoticeAdded)
    assert len(of(parts, StepStarted)) == len(of(parts, TextStarted)) == 1
    assert len(of(parts, ModelCallEnded)) == 3
    assert parts[-1] == LoopAnswered()
    assert_well_ordered(parts)


async def test_a_text_is_gone_on_with_twice_a_turn_and_then_the_cut_is_said():
    """A2.4: also when tools ran in between"""
    reciter = Reciter(
        say("One, ", finish="length"),
        calls(call("a", "look"), text="two."),
        say("Three, ", finish="length"),
        say("four, ", finish="length"),
    )
    loop = loop_of(reciter)
    parts = await play(loop)
    assert [row.content for row in kept(parts) if row.kind == "assistant"] == ["One, two.", "Three, four, "]
    assert loop.messages[1].text == "One, two."
    assert [notice.code for notice in of(parts, NoticeAdded)] == ["output_truncated"]
    assert len(reciter.requests) == 4
    assert_well_ordered(parts)


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        ([ProviderFailure("overloaded")], "Once up"),
        ([TextDelta("on"), ProviderFailure("overloaded")], "Once upon"),
        ([TextDelta("on"), call("a", "look"), ProviderFailure("unknown")], "Once upon"),
        ([ReplyFinished("refused")], "Once up"),
        ([ReasoningDelta("hm"), ReplyFinished("length")], "Once up"),  # all of it went into thought
        ([ReasoningDelta("hm"), TextDelta("on"), ProviderFailure("malformed_stream")], "Once upon"),
    ],
)
async def test_the_text_so_far_is_kept_when_the_continuation_fails(rest, text):
    """A2.4: no retry, no failed turn; the cut is said"""
    reciter = Reciter(say("Once up", finish="length"), rest)
    loop = loop_of(reciter)
    parts = await play(loop)
    assert [row.content for row in kept(parts) if row.kind in ("assistant", "reasoning")] == [text]
    assert loop.messages[-1] == AssistantMessage(text=text)
    assert [notice.code for notice in of(parts, NoticeAdded)] == ["output_truncated"]
    assert len(reciter.requests) == 2
    assert parts[-1] == LoopAnswered()
    assert_well_ordered(parts)


async def test_nothing_to_add_is_the_end_of_a_cut_text():
    """A2.4"""
    parts = await play(loop_of(Reciter(say("Once", finish="length"), [ReplyFinished("stop")])))
    assert [row.content for row in kept(parts) if row.kind == "assistant"] == ["Once"]
    assert not of(parts, NoticeAdded)
    assert_well_ordered(parts)


async def test_no_money_for_the_rest_leaves_the_text_cut():
    """A2.4, A10.4: the look before the rest finds the budget spent"""
    budget = InMemoryBudget(1_000, budget=1_000)
    reciter = Reciter(say("Once", finish="length"))
    parts = await play(loop_of(reciter, budget=budget))
    assert len(reciter.requests) == 1
    assert [notice.code for notice in of(parts, NoticeAdded)] == ["output_truncated"]
    assert parts[-1] == LoopAnswered()
    assert_well_ordered(parts)


async def test_a_refusal_fails_the_turn_without_a_second_request():
    reciter = Reciter(say("I would rather not.", finish="refused"))
    parts = await play(loop_of(reciter))
    assert parts[-1] == LoopFailed(code="refused")
    assert len(reciter.requests) == 1
    assert_well_ordered(parts)


async def test_the_last_round_says_so_and_runs_no_tool():
    """A10.c2, A10.1"""
    toolbox = InMemoryToolbox(tools={"look": look})
    asking = [calls(call(f"c{number}", "look"), text="Looking.") for number in range(4)]
    reciter = Reciter(*asking)
    parts = await play(loop_of(reciter, limits=TurnLimits(max_rounds=3), toolbox=toolbox))
    assert len(reciter.requests) == 3
    assert "last round" in reciter.requests[2].messages[-1].text
    assert len(toolbox.ran) == 2
    assert of(parts, ToolResultAdded)[-1].outcome.content == ROUND_LIMIT_MESSAGE
    assert of(parts, NoticeAdded)[-1].code == "round_limit"
    assert parts[-1] == LoopAnswered(limit_code="round_limit")
    assert_well_ordered(parts)


async def test_a_limit_without_any_text_fails_the_turn():
    """A10.6"""
    reciter = Reciter(calls(call("a", "look")))
    parts = await play(loop_of(reciter, limits=TurnLimits(max_rounds=1)))
    assert parts[-1] == LoopFailed(code="round_limit")
    assert not of(parts, NoticeAdded)


async def test_the_same_round_again_and_again_is_noted_once_and_ended_after_the_sixth():
    """A10.c1, A10.2"""
    reciter = Reciter(*(calls(call(f"c{number}", "look")) for number in range(9)))
    parts = await play(loop_of(reciter))
    assert len(reciter.requests) == 6
    assert len(of(parts, NoteAdded)) == 1
    assert "3 times" in reciter.requests[3].messages[-1].text
    assert parts[-1] == LoopFailed(code="loop_detected")


async def test_five_unusable_calls_in_a_row_end_the_turn():
    """A10.3"""
    reciter = Reciter(*(calls(call(f"c{number}", "write_file", "")) for number in range(9)))
    toolbox = InMemoryToolbox(tools={"write_file": look}, required={"write_file": ("content",)})
    parts = await play(loop_of(reciter, toolbox=toolbox, limits=TurnLimits(loop_repeats=99)))
    assert len(reciter.requests) == 5
    assert parts[-1] == LoopFailed(code="tool_calls_broken")


async def test_the_wall_clock_ends_the_turn_between_rounds():
    """A10.5"""
    clock = ManualClock()

    async def slow(made, emit):
        clock.advance(3600)
        return outcome(made)

    reciter = Reciter(calls(call("a", "slow"), text="This takes a while."))
    parts = await play(loop_of(reciter, clock=clock, toolbox=InMemoryToolbox(tools={"slow": slow})))
    assert parts[-1] == LoopAnswered(limit_code="time_limit")


async def test_a_failure_after_visible_text_retracts_the_step_and_tries_again():
    """A7.c2, A7.3"""
    reciter = Reciter([TextDelta("x" * 200), ProviderFailure("overloaded")], say("The answer."))
    parts = await play(loop_of(reciter))
    retracted = of(parts, StepRetracted)[0]
    assert retracted.row_ids == [of(parts, TextStarted)[0].row_id]
    visible = [row for row in kept(parts) if row.kind == "assistant" and not row.hidden]
    assert [row.content for row in visible] == ["The answer."]
    assert len(of(parts, ModelCallEnded)) == 2
    assert_well_ordered(parts)


async def test_a_round_is_retracted_at_most_once_and_the_second_text_stays():
    """A7.3"""
    broken = [TextDelta("partial"), ProviderFailure("overloaded")]
    parts = await play(loop_of(Reciter(broken, broken)))
    assert len(of(parts, StepRetracted)) == 1
    assert [row.content for row in kept(parts) if not row.hidden] == ["partial"]
    assert parts[-1] == LoopFailed(code="overloaded")


async def test_an_overloaded_provider_is_tried_again_until_it_answers():
    """A7.c1, A6.4: it leaves events alone, and no notice"""
    clock = ManualClock()
    busy = [ProviderFailure("overloaded", refused_before_work=True)]
    parts = await play(loop_of(Reciter(busy, busy, say("Here I am.")), clock=clock))
    assert [(part.attempt, part.attempts) for part in of(parts, ModelRetrying)] == [(1, 3), (2, 3)]
    assert 1.5 <= clock.slept[0] <= 2.5
    assert 6 <= clock.slept[1] <= 10
    assert [part.number for part in of(parts, ModelCallStarted)] == [1, 2, 3]
    assert of(parts, ModelCallEnded)[0].tokens == Tokens()
    assert of(parts, NoticeAdded) == []
    assert parts[-1] == LoopAnswered()


async def test_unreported_usage_is_estimated_and_a_broken_report_is_completed():
    """A19.5"""
    lag = [UsageReported(Tokens(input=50, output=1)), TextDelta("y" * 400), ProviderFailure("bad_request")]
    ended = of(await play(loop_of(Reciter(lag))), ModelCallEnded)[0]
    assert (ended.tokens, ended.estimated, ended.aborted) == (Tokens(input=50, output=100), True, True)
    ended = of(await play(loop_of(Reciter(say("abcd")))), ModelCallEnded)[0]
    assert (ended.tokens.output, ended.estimated, ended.aborted) == (1, True, False)


async def test_every_step_that_starts_also_finishes_or_is_retracted():
    parts = await play(loop_of(Reciter([ProviderFailure("overloaded")], say("Hi."))))
    assert len(of(parts, StepStarted)) == len(of(parts, StepFinished, StepRetracted)) == 2


async def test_a_long_output_that_the_model_has_already_is_pointed_at():
    """A9.8, A10.2: once in its context; people still see it, and circles are seen as before"""
    text = "x" * 2_000

    async def read(made, emit):
        return outcome(made, text)

    reciter = Reciter(*(calls(call(f"c{number}", "look")) for number in range(9)))
    parts = await play(loop_of(reciter, toolbox=InMemoryToolbox(tools={"look": read})))
    made = [part.outcome for part in of(parts, ToolResultAdded)]
    assert [one.content == text for one in made] == [True, *[False] * 5]
    assert all('call_id "c0"' in one.content for one in made[1:])
    assert {one.preview for one in made} == {text}
    assert len(reciter.requests) == 6
    assert "3 times" in reciter.requests[3].messages[-1].text


@pytest.mark.parametrize(
    "again",
    [
        {"content": "x" * 1_999},
        {"success": False},
        {"media": (ImagePart(mime="image/png", data=b"", name="a.png"),)},
    ],
)
async def test_outputs_that_are_short_or_not_the_same_are_said_again(again):
    """A9.8"""
    first = {"content": "x" * len(again.get("content", "x" * 2_000))}
    results = [first, first | again]

    async def read(made, emit):
        return replace(outcome(made), **results.pop(0))

    reciter = Reciter(calls(call("a", "look")), calls(call("b", "look")), say("Done."))
    parts = await play(loop_of(reciter, toolbox=InMemoryToolbox(tools={"look": read})))
    contents = [part.outcome.content for part in of(parts, ToolResultAdded)]
    assert contents[0] == contents[1]
