"""The loop: rounds, their order, their endings (A2, A3.5, A10, A13, A14)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from uuid import uuid4

import pytest

from copilot.agent.guards import Limits
from copilot.agent.loop import CLOSING_LINE
from copilot.agent.parts import (
    Answered,
    CallMade,
    Failed,
    ModelCallEnded,
    ModelCallStarted,
    NoteMade,
    NoticeMade,
    ReplayKept,
    ResultMade,
)
from copilot.agent.ports import ManualClock, MemoryFollowUps, MemoryToolbox
from copilot.agent.prompt import build, interrupted_note
from copilot.agent.replies import Continuing
from copilot.events import (
    ModelRetrying,
    StepFinished,
    StepRetracted,
    StepStarted,
    TextEnded,
    TextExtended,
    TextStarted,
    Tokens,
    ToolProgressed,
    ToolProposed,
)
from copilot.providers.base import (
    AssistantMessage,
    CallFragment,
    Finished,
    ImagePart,
    ProviderFailure,
    ReasoningDelta,
    ReasoningReplay,
    TextDelta,
    ToolCall,
    ToolGroup,
    ToolResult,
    UsageReported,
    UserMessage,
)
from copilot.rows import Row
from copilot.tools.calls import FAILED_BEFORE_IT_RAN, MALFORMED, NO_RESULT, NOT_EXECUTED
from tests.playing import (
    ENTRY,
    TURN,
    Keeper,
    Reciter,
    Silence,
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

FULL_REPLY = [
    ReasoningDelta("Let me "),
    ReasoningDelta("think."),
    TextDelta("I shall "),
    TextDelta("look twice."),
    CallFragment(0, "a", "look", ""),
    CallFragment(0, "", "", '{"at":'),
    CallFragment(0, "", "", ' "x"}'),
    CallFragment(1, "b", "look", '{"at": "y"}'),
    UsageReported(Tokens(input=10, output=20)),
    Finished("tool_calls"),
]


async def test_an_answer_is_one_step_with_one_text_block():
    loop = loop_of(Reciter(say("Hello ", "", "Ada.")))
    parts = await play(loop)
    assert kinds(parts) == [
        "step.started",
        "ModelCallStarted",
        "text.started",
        "text.extended",
        "text.extended",
        "text.ended",
        "ModelCallEnded",
        "step.finished",
        "Answered",
    ]
    assert [(part.offset, part.delta) for part in of(parts, TextExtended)] == [(0, "Hello "), (6, "Ada.")]
    assert loop.messages[-1] == AssistantMessage(text="Hello Ada.")


async def test_thinking_then_text_then_a_call_come_in_this_order():
    """A2.c2, A14.2"""
    reply = [
        ReasoningDelta("hm"),
        TextDelta("\n\n"),
        TextDelta("Looking."),
        call("a", "look"),
        Finished("stop"),
    ]
    parts = await play(loop_of(Reciter(reply, say("Found it."))))
    assert kinds(parts)[2:12] == [
        "reasoning.started",
        "reasoning.extended",
        "reasoning.ended",
        "text.started",
        "text.extended",
        "text.ended",
        "tool.proposed",
        "ModelCallEnded",
        "CallMade",
        "ResultMade",
    ]
    assert_well_ordered(parts)


@pytest.mark.parametrize("code", ["overloaded", "bad_request", "malformed_stream"])
@pytest.mark.parametrize("index", range(len(FULL_REPLY)))
async def test_a_failure_at_any_item_keeps_the_order_of_a_step(index, code):
    """A2.c1"""
    broken = [*FULL_REPLY[:index], ProviderFailure(code)]
    reciter = Reciter(broken, FULL_REPLY, say("Done."))
    loop = loop_of(reciter)
    parts = await play(loop)
    assert_well_ordered(parts)
    assert reciter.closed == len(reciter.requests)
    if code == "bad_request":
        assert parts[-1] == Failed(code=code)
    else:
        assert parts[-1] == Answered()
        user = Row(id="u", kind="user", content="Hello")
        rebuilt = build(kept(parts, user)[:-1], turn_id=TURN, entry=ENTRY)
        assert rebuilt == tuple(loop.messages[:-1])


@pytest.mark.parametrize("index", range(len(FULL_REPLY)))
async def test_every_call_that_was_shown_has_a_result_when_the_turn_fails(index):
    """A3.5: a call whose arguments still streamed is stored with {}."""
    parts = await play(loop_of(Reciter([*FULL_REPLY[:index], ProviderFailure("quota_exhausted")])))
    assert_well_ordered(parts)
    proposed = [part.call_id for part in of(parts, ToolProposed)]
    assert [part.call.call_id for part in of(parts, CallMade)] == proposed
    assert all(part.call.arguments == {} for part in of(parts, CallMade))
    assert {part.outcome.content for part in of(parts, ResultMade)} <= {FAILED_BEFORE_IT_RAN}


def test_importing_the_loop_loads_no_framework():
    """A2.c2"""
    modules = "copilot.agent.loop, copilot.agent.prompt, copilot.folding, copilot.tools.calls, sys"
    code = f"import {modules}; print(' '.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"django", "celery", "channels", "redis"} & {name.partition(".")[0] for name in loaded}


async def test_results_reach_the_model_in_call_order_whatever_order_they_came_in():
    """A9.3, A9.c1 as far as the loop is concerned"""
    first_may_end = asyncio.Event()

    async def slow(made, emit):
        await first_may_end.wait()
        return outcome(made, "slow")

    async def quick(made, emit):
        emit(ToolProgressed(call_id=made.call_id, message="working"))
        first_may_end.set()
        return outcome(made, "quick")

    reciter = Reciter(calls(call("a", "slow"), call("b", "quick")), say("Both are done."))
    loop = loop_of(reciter, toolbox=MemoryToolbox(tools={"slow": slow, "quick": quick}))
    parts = await play(loop)
    assert [part.outcome.call_id for part in of(parts, ResultMade)] == ["b", "a"]
    assert kinds(parts).index("tool.progressed") < kinds(parts).index("ResultMade")
    assert [result.content for result in loop.messages[2].results] == ["slow", "quick"]
    assert_well_ordered(parts)


async def test_each_later_request_begins_with_the_earlier_one():
    """A15.9: the loop itself never rewrites what it has sent."""
    reciter = Reciter(
        calls(call("a", "look"), text="One."), calls(call("b", "look"), text="Two."), say("End.")
    )
    await play(loop_of(reciter, follow_ups=MemoryFollowUps([(UserMessage(text="and?"),)])))
    for earlier, later in zip(reciter.requests, reciter.requests[1:], strict=False):
        assert later.messages[: len(earlier.messages)] == earlier.messages
        assert (later.system, later.tools) == (earlier.system, earlier.tools)


async def test_a_reply_without_text_or_calls_is_tried_once_more_and_then_fails():
    """A2.5, A7.1"""
    clock = ManualClock()
    reciter = Reciter([ReasoningDelta("hm"), Finished("stop")], [Finished("stop")])
    parts = await play(loop_of(reciter, clock=clock))
    assert parts[-1] == Failed(code="no_response")
    assert len(clock.slept) == len(of(parts, ModelRetrying)) == 1
    assert_well_ordered(parts)


async def test_a_stream_that_ends_without_an_ending_is_malformed_and_one_without_anything_no_response():
    for lines, code in (([TextDelta("Hal")], "malformed_stream"), ([], "no_response")):
        parts = await play(loop_of(Reciter(lines, lines)))
        assert parts[-1].code == code
        assert_well_ordered(parts)


async def test_tools_that_end_in_silence_get_one_closing_line_inside_the_step():
    """A14.c2, A14.7"""
    loop = loop_of(Reciter(calls(call("a", "look"), text="Looking."), [TextDelta("\n"), Finished("stop")]))
    parts = await play(loop)
    assert kinds(parts)[-5:] == ["text.started", "text.extended", "text.ended", "step.finished", "Answered"]
    assert of(parts, TextExtended)[-1].delta == CLOSING_LINE
    assert len(of(parts, ModelCallStarted)) == 2
    assert_well_ordered(parts)


async def test_text_cut_by_the_output_limit_is_kept_and_said_so():
    """A2.4"""
    parts = await play(loop_of(Reciter(say("Once upon", finish="length"))))
    assert of(parts, NoticeMade)[0].code == "output_truncated"
    assert parts[-1] == Answered()


async def test_a_refusal_fails_the_turn_without_a_second_request():
    reciter = Reciter(say("I would rather not.", finish="refused"))
    parts = await play(loop_of(reciter))
    assert parts[-1] == Failed(code="refused")
    assert len(reciter.requests) == 1
    assert_well_ordered(parts)


async def test_calls_cut_by_the_output_limit_are_dropped_and_the_model_is_told():
    """A8.c2, A8.4"""
    cut = calls(call("a", "look"), call("b", "write_file", '{"te'), text="Writing.", finish="length")
    loop = loop_of(Reciter(cut, say("Shorter now.")))
    parts = await play(loop)
    assert not of(parts, CallMade)
    assert "look, write_file" in of(parts, NoteMade)[0].text
    assert loop.rounds == 2
    assert loop.messages[1] == AssistantMessage(text="Writing.")
    assert_well_ordered(parts)


async def test_two_malformed_calls_get_two_error_results_and_one_note_and_never_run():
    """A8.c1, A8.2, A8.3"""
    broken = calls(call("a", "write_file", '{"text": "unfin'))
    toolbox = MemoryToolbox(tools={"write_file": look})
    loop = loop_of(Reciter(broken, broken, say("I give up.")), toolbox=toolbox)
    parts = await play(loop)
    assert [part.outcome.content for part in of(parts, ResultMade)] == [MALFORMED, MALFORMED]
    assert of(parts, CallMade)[0].call.raw_arguments == '{"text": "unfin'
    assert [call.arguments for m in loop.messages if isinstance(m, AssistantMessage) for call in m.calls] == [
        {},
        {},
    ]
    assert len(of(parts, NoteMade)) == 1
    assert toolbox.ran == []


async def test_an_id_the_conversation_already_knows_is_renamed():
    """A8.1, A9.8: a second result under one id could not be stored."""
    parts = await play(loop_of(Reciter(calls(call("a", "look")), calls(call("a", "look")), say("Twice."))))
    first, second = (part.call.call_id for part in of(parts, CallMade))
    assert first == "a"
    assert second != "a"
    assert [part.call_id for part in of(parts, ToolProposed)] == [first, second]


async def test_the_seventeenth_call_is_answered_and_not_run():
    """A8.7"""
    toolbox = MemoryToolbox(tools={"look": look})
    many = calls(*(call(f"c{number}", "look") for number in range(18)))
    parts = await play(loop_of(Reciter(many, say("Enough.")), toolbox=toolbox))
    assert len(toolbox.ran) == 16
    assert [part.outcome.success for part in of(parts, ResultMade)].count(False) == 2


async def test_the_last_round_says_so_and_runs_no_tool():
    """A10.c2, A10.1"""
    toolbox = MemoryToolbox(tools={"look": look})
    asking = [calls(call(f"c{number}", "look"), text="Looking.") for number in range(4)]
    reciter = Reciter(*asking)
    parts = await play(loop_of(reciter, limits=Limits(max_rounds=3), toolbox=toolbox))
    assert len(reciter.requests) == 3
    assert "last round" in reciter.requests[2].messages[-1].text
    assert len(toolbox.ran) == 2
    assert of(parts, ResultMade)[-1].outcome.content == NOT_EXECUTED
    assert of(parts, NoticeMade)[-1].code == "round_limit"
    assert parts[-1] == Answered(limit_code="round_limit")
    assert_well_ordered(parts)


async def test_a_limit_without_any_text_fails_the_turn():
    """A10.6"""
    reciter = Reciter(calls(call("a", "look")))
    parts = await play(loop_of(reciter, limits=Limits(max_rounds=1)))
    assert parts[-1] == Failed(code="round_limit")
    assert not of(parts, NoticeMade)


async def test_the_same_round_again_and_again_is_noted_once_and_ended_after_the_sixth():
    """A10.c1, A10.2"""
    reciter = Reciter(*(calls(call(f"c{number}", "look")) for number in range(9)))
    parts = await play(loop_of(reciter))
    assert len(reciter.requests) == 6
    assert len(of(parts, NoteMade)) == 1
    assert "three times" in reciter.requests[3].messages[-1].text
    assert parts[-1] == Failed(code="loop_detected")


async def test_five_unusable_calls_in_a_row_end_the_turn():
    """A10.3"""
    reciter = Reciter(*(calls(call(f"c{number}", "write_file", "")) for number in range(9)))
    toolbox = MemoryToolbox(tools={"write_file": look}, required={"write_file": ("content",)})
    parts = await play(loop_of(reciter, toolbox=toolbox, limits=Limits(loop_repeats=99)))
    assert len(reciter.requests) == 5
    assert parts[-1] == Failed(code="tool_calls_broken")


async def test_the_wall_clock_ends_the_turn_between_rounds():
    """A10.5"""
    clock = ManualClock()

    async def slow(made, emit):
        clock.advance(3600)
        return outcome(made)

    reciter = Reciter(calls(call("a", "slow"), text="This takes a while."))
    parts = await play(loop_of(reciter, clock=clock, toolbox=MemoryToolbox(tools={"slow": slow})))
    assert parts[-1] == Answered(limit_code="time_limit")


async def test_follow_ups_come_after_the_whole_group_and_not_when_a_limit_ends_the_turn():
    """A13.5, A13.7"""
    waiting = [(UserMessage(text="<user_follow_up>first</user_follow_up>"),), (UserMessage(text="second"),)]
    reciter = Reciter(calls(call("a", "look"), call("b", "look")), calls(call("c", "look")))
    follow_ups = MemoryFollowUps(waiting)
    loop = loop_of(reciter, follow_ups=follow_ups, limits=Limits(max_rounds=2))
    await play(loop)
    assert isinstance(reciter.requests[1].messages[-2], ToolGroup)
    assert reciter.requests[1].messages[-1].text.startswith("<user_follow_up>first")
    assert await follow_ups.take() == (UserMessage(text="second"),)


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
    assert parts[-1] == Failed(code="overloaded")


async def test_an_overloaded_provider_is_tried_again_until_it_answers():
    """A7.c1"""
    clock = ManualClock()
    busy = [ProviderFailure("overloaded", refused_before_work=True)]
    parts = await play(loop_of(Reciter(busy, busy, say("Here I am.")), clock=clock))
    assert [(part.attempt, part.attempts) for part in of(parts, ModelRetrying)] == [(1, 3), (2, 3)]
    assert 1.5 <= clock.slept[0] <= 2.5
    assert 6 <= clock.slept[1] <= 10
    assert [part.number for part in of(parts, ModelCallStarted)] == [1, 2, 3]
    assert of(parts, ModelCallEnded)[0].tokens == Tokens()
    assert parts[-1] == Answered()


async def test_unreported_usage_is_estimated_and_a_broken_report_is_completed():
    """A19.5"""
    lag = [UsageReported(Tokens(input=50, output=1)), TextDelta("y" * 400), ProviderFailure("bad_request")]
    ended = of(await play(loop_of(Reciter(lag))), ModelCallEnded)[0]
    assert (ended.tokens, ended.estimated, ended.aborted) == (Tokens(input=50, output=100), True, True)
    ended = of(await play(loop_of(Reciter(say("abcd")))), ModelCallEnded)[0]
    assert (ended.tokens.output, ended.estimated, ended.aborted) == (1, True, False)


async def test_opaque_reasoning_goes_back_inside_the_tool_loop_and_is_kept_with_a_row():
    """A14.3, A14.4"""
    thinking = [ReasoningDelta("hm"), ReasoningReplay("signed"), call("a", "look"), Finished("tool_calls")]
    hidden = [ReasoningReplay("redacted"), call("b", "look"), Finished("tool_calls")]
    reciter = Reciter(thinking, hidden, say("Done."))
    loop = loop_of(reciter)
    parts = await play(loop)
    assert [m.replay for m in loop.messages if isinstance(m, AssistantMessage)] == [
        ("signed",),
        ("redacted",),
        (),
    ]
    rows = kept(parts, Row(id="u", kind="user", content="Hello"))
    assert {row.kind for row in rows if row.replay} == {"reasoning", "tool_call"}
    assert len(of(parts, ReplayKept)) == 2
    assert list(build(rows[:-1], turn_id=TURN, entry=ENTRY)) == loop.messages[:-1]


@pytest.mark.parametrize("sees", [True, False])
async def test_pictures_in_results_follow_the_whole_group_where_the_model_sees_pictures(sees):
    """A9.9, A9.c3 as far as the loop is concerned"""
    picture = ImagePart(mime="image/png", data=b"png")

    async def show(made, emit):
        return replace(outcome(made), media=(picture,))

    reciter = Reciter(calls(call("a", "show"), call("b", "look")), say("A cat."))
    toolbox = MemoryToolbox(tools={"show": show, "look": look})
    await play(loop_of(reciter, toolbox=toolbox, chain=(replace(ENTRY, supports_images=sees),)))
    *_, group = [m for m in reciter.requests[1].messages if isinstance(m, ToolGroup)]
    after = reciter.requests[1].messages[reciter.requests[1].messages.index(group) + 1 :]
    assert [message.images for message in after] == ([(picture,)] if sees else [])


# --- going on, taking over, stopping -----------------------------------------------------------------


async def test_the_same_turn_goes_on_with_what_was_queued():
    """T6.3"""
    reciter = Reciter(say("First."), say("Second."))
    loop = loop_of(reciter)
    await play(loop)
    assert loop.can_go_on
    loop.go_on([UserMessage(text="And now?"), UserMessage(text="Please.")])
    parts = await play(loop)
    assert reciter.requests[1].messages == (
        UserMessage(text="Hello"),
        AssistantMessage(text="First."),
        UserMessage(text="And now?\n\nPlease."),
    )
    assert loop.rounds == 2
    assert [part.number for part in of(parts, ModelCallStarted)] == [2]
    assert_well_ordered(parts)


async def test_a_turn_without_rounds_left_cannot_go_on():
    loop = loop_of(Reciter(say("First.")), limits=Limits(max_rounds=1))
    await play(loop)
    assert not loop.can_go_on


async def test_an_interrupted_text_goes_on_in_its_row():
    """T9.1"""
    row_id = uuid4()
    messages = [UserMessage(text="Count."), AssistantMessage(text="One, two"), interrupted_note()]
    loop = loop_of(
        Reciter(say(", three.")),
        messages=messages,
        continuing=Continuing(row_id=row_id, length=8),
        first_call_number=2,
        first_round=1,
    )
    parts = await play(loop)
    assert not of(parts, TextStarted)
    assert [(part.row_id, part.offset, part.delta) for part in of(parts, TextExtended)] == [
        (str(row_id), 8, ", three.")
    ]
    assert [part.row_id for part in of(parts, TextEnded)] == [str(row_id)]
    assert of(parts, ModelCallStarted)[0].number == 2


@pytest.mark.parametrize(
    ("reply", "ending"),
    [
        (calls(call("a", "look")), Answered()),
        ([Finished("stop")], Answered()),
        ([ProviderFailure("bad_request")], Failed(code="bad_request")),
    ],
)
async def test_an_interrupted_row_is_ended_even_when_nothing_is_added(reply, ending):
    row_id = uuid4()
    messages = [UserMessage(text="Count."), AssistantMessage(text="One"), interrupted_note()]
    loop = loop_of(
        Reciter(reply, say("Two.")), messages=messages, continuing=Continuing(row_id=row_id, length=3)
    )
    parts = await play(loop)
    assert str(row_id) in [part.row_id for part in of(parts, TextEnded)]
    assert parts[-1] == ending


async def test_what_a_failed_try_added_to_an_interrupted_row_stays():
    row_id = uuid4()
    messages = [UserMessage(text="Count."), AssistantMessage(text="One"), interrupted_note()]
    reciter = Reciter([TextDelta(", two"), ProviderFailure("overloaded")], say(", three."))
    loop = loop_of(reciter, messages=messages, continuing=Continuing(row_id=row_id, length=3))
    parts = await play(loop)
    assert not of(parts, StepRetracted)
    assert reciter.requests[1].messages[1] == AssistantMessage(text="One, two")


async def test_repeatable_calls_of_a_lost_worker_run_again_before_the_model_is_asked():
    """A3.9"""
    open_call = ToolCall(call_id="a", tool="look", arguments={})
    made_up = ToolGroup(results=(ToolResult(call_id="a", tool="look", content=NO_RESULT, success=False),))
    messages = [UserMessage(text="Look."), AssistantMessage(text="", calls=(open_call,)), made_up]
    reciter = Reciter(say("Seen."))
    loop = loop_of(reciter, messages=messages, pending_calls=(open_call,), first_round=2)
    parts = await play(loop)
    assert not of(parts, CallMade)
    assert reciter.requests[0].messages[2].results[0].content == "done"
    assert kinds(parts)[:3] == ["step.started", "ResultMade", "step.finished"]
    assert [part.round for part in of(parts, StepStarted)] == [1, 2]
    assert parts[-1] == Answered()


async def played_until(loop, condition):
    """Play in a task of its own, cancel it when `condition` holds, and give what was produced."""
    parts = []
    reached = asyncio.Event()

    async def run():
        async for part in loop.play():
            parts.append(part)
            if condition(parts):
                reached.set()

    task = asyncio.create_task(run())
    await reached.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    return parts


async def test_a_stop_amid_text_leaves_the_block_the_step_and_the_call_to_be_ended():
    """A1.6, A2.7, A19.5"""
    reciter = Reciter([TextDelta("Once upon"), Silence()])
    loop = loop_of(reciter)
    parts = await played_until(loop, lambda parts: of(parts, TextExtended))
    assert reciter.closed == 1
    assert loop.open_block.row_id == of(parts, TextStarted)[0].row_id
    assert loop.open_step.step_id == of(parts, StepStarted)[0].step_id
    assert loop.open_calls == ()
    ended = loop.open_call()
    assert (ended.id, ended.aborted) == (of(parts, ModelCallStarted)[0].id, True)


async def test_a_stop_while_arguments_stream_leaves_the_call_with_none():
    """A3.5"""
    loop = loop_of(Reciter([call("a", "look", '{"at'), Silence()]))
    await played_until(loop, lambda parts: of(parts, ToolProposed))
    (left,) = loop.open_calls
    assert (left.call, left.made) == (ToolCall(call_id="a", tool="look", arguments={}), False)


async def test_a_stop_while_tools_run_keeps_the_finished_result_and_names_the_open_call():
    """A9.4, A9.c2 as far as the loop is concerned"""
    cancelled = asyncio.Event()

    async def hang(made, emit):
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    toolbox = MemoryToolbox(tools={"look": look, "hang": hang})
    loop = loop_of(Reciter(calls(call("a", "hang"), call("b", "look"))), toolbox=toolbox)
    parts = await played_until(loop, lambda parts: of(parts, ResultMade))
    assert cancelled.is_set()
    assert [(left.call.call_id, left.made) for left in loop.open_calls] == [("a", True)]
    assert loop.open_calls[0].row_id == of(parts, CallMade)[0].row_id
    assert loop.open_call() is None
    assert loop.open_step is not None


async def test_nothing_stands_open_after_an_answer():
    loop = loop_of(Reciter(calls(call("a", "look"), text="Hm."), say("Done.")))
    await play(loop)
    assert (loop.open_call(), loop.open_block, loop.open_calls, loop.open_step) == (None, None, (), None)


async def test_the_turn_can_read_what_the_loop_took():
    """A3.6, A19.9"""
    clock = ManualClock(100.0)

    async def slow(made, emit):
        clock.advance(30)
        return outcome(made)

    first = [TextDelta("a"), call("a", "slow"), UsageReported(Tokens(input=5, output=2)), Finished("stop")]
    last = [TextDelta("b"), UsageReported(Tokens(input=9, output=4)), Finished("stop")]
    loop = loop_of(Reciter(first, last), clock=clock, toolbox=MemoryToolbox(tools={"slow": slow}))
    await play(loop)
    assert loop.tokens == Tokens(input=14, output=6)
    assert (loop.rounds, loop.first_token_at, loop.generation_seconds) == (2, 100.0, 0.0)
    assert loop.entry is ENTRY


async def test_rows_kept_while_playing_build_the_conversation_the_loop_had():
    """A33.c5, A16: reload and live agree, follow-ups and notes included."""
    keeper = Keeper(Row(id="u", kind="user", content="Hello"))

    class Stored:
        async def take(self):
            row = Row(id=str(uuid4()), kind="user", mid_turn=True, data={"follow_up": "<user_follow_up/>"})
            keeper.add(row)
            return (UserMessage(text="<user_follow_up/>"),)

    reciter = Reciter(
        [TextDelta("A"), ReasoningDelta("hm"), TextDelta("B"), call("a", "look"), Finished("tool_calls")],
        calls(call("b", "nonsense"), call("c", "look", '{"b": 1, "a": [2]}'), text="More."),
        calls(call("d", "write_file", "{"), finish="length", text="Cut"),
        say("End."),
    )
    loop = loop_of(reciter, follow_ups=Stored(), limits=Limits(max_rounds=4))
    async for part in loop.play():
        keeper.keep(part)
    before_answer = keeper.rows()[:-1]
    assert list(build(before_answer, turn_id=TURN, entry=ENTRY)) == loop.messages[:-1]


async def test_every_step_that_starts_also_finishes_or_is_retracted():
    parts = await play(loop_of(Reciter([ProviderFailure("overloaded")], say("Hi."))))
    assert len(of(parts, StepStarted)) == len(of(parts, StepFinished, StepRetracted)) == 2
