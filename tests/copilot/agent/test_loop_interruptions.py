"""A loop that continues, is taken over, or is stopped (T6.3, T7, T9.1, A3.5, A3.9)."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from copilot.agent.guards import PriorRuns, TurnLimits
from copilot.agent.loop import CLOSING_LINE, UnfinishedWork
from copilot.agent.model_context import build_interrupted_note
from copilot.agent.model_stream import InterruptedText
from copilot.agent.outputs import LoopAnswered, LoopFailed, ModelCallStarted, ToolCallAdded, ToolResultAdded
from copilot.providers.base import (
    AssistantMessage,
    ProviderFailure,
    ReplyFinished,
    ResponseIdReceived,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolResultsMessage,
    UserMessage,
)
from copilot.realtime.events import (
    StepRetracted,
    StepStarted,
    TextEnded,
    TextExtended,
    TextStarted,
    ToolProposed,
)
from copilot.tools.calls import NO_RESULT_MESSAGE
from tests.support.agent_doubles import InMemoryToolbox
from tests.support.agent_loop import (
    Reciter,
    Silence,
    assert_well_ordered,
    call,
    calls,
    kinds,
    look,
    loop_of,
    of,
    play,
    play_until,
    say,
)


async def test_the_same_turn_continues_with_the_queued_messages():
    """T6.3"""
    reciter = Reciter(say("First."), say("Second."))
    loop = loop_of(reciter)
    await play(loop)
    assert loop.can_start_round
    loop.add_follow_ups([UserMessage(text="And now?"), UserMessage(text="Please.")])
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
    loop = loop_of(Reciter(say("First.")), limits=TurnLimits(max_rounds=1))
    await play(loop)
    assert not loop.can_start_round


async def test_an_interrupted_text_continues_in_its_row():
    """T9.1"""
    row_id = uuid4()
    messages = [UserMessage(text="Count."), AssistantMessage(text="One, two"), build_interrupted_note()]
    loop = loop_of(
        Reciter(say(", three.")),
        messages=messages,
        unfinished=UnfinishedWork(text=InterruptedText(row_id=row_id, length=8)),
        prior_runs=PriorRuns(calls=1),
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
        (calls(call("a", "look")), LoopAnswered()),
        ([ReplyFinished("stop")], LoopAnswered()),
        ([ProviderFailure("bad_request")], LoopFailed(code="bad_request")),
    ],
)
async def test_an_interrupted_row_is_ended_even_when_nothing_is_added(reply, ending):
    row_id = uuid4()
    messages = [UserMessage(text="Count."), AssistantMessage(text="One"), build_interrupted_note()]
    loop = loop_of(
        Reciter(reply, say("Two.")),
        messages=messages,
        unfinished=UnfinishedWork(text=InterruptedText(row_id=row_id, length=3)),
    )
    parts = await play(loop)
    assert str(row_id) in [part.row_id for part in of(parts, TextEnded)]
    assert parts[-1] == ending


@pytest.mark.parametrize("tries", [[], [[ProviderFailure("overloaded")]]])
async def test_a_text_that_was_whole_needs_nothing_added(tries):
    """T9.1: its worker was lost between the last word and the record of it; silence is no failure then"""
    messages = [
        UserMessage(text="Count."),
        AssistantMessage(text="One, two, three."),
        build_interrupted_note(),
    ]
    loop = loop_of(
        Reciter(*tries, [ReplyFinished("stop")]),
        messages=messages,
        unfinished=UnfinishedWork(ends_with_text=True),
        prior_runs=PriorRuns(calls=1),
    )
    parts = await play(loop)
    assert parts[-1] == LoopAnswered()
    assert not of(parts, TextStarted)
    assert loop.messages == messages[:2]  # the next message is answered, not treated as a continuation


async def test_what_a_failed_try_added_to_an_interrupted_row_stays():
    row_id = uuid4()
    messages = [UserMessage(text="Count."), AssistantMessage(text="One"), build_interrupted_note()]
    reciter = Reciter([TextDelta(", two"), ProviderFailure("overloaded")], say(", three."))
    loop = loop_of(
        reciter,
        messages=messages,
        unfinished=UnfinishedWork(text=InterruptedText(row_id=row_id, length=3)),
    )
    parts = await play(loop)
    assert not of(parts, StepRetracted)
    assert reciter.requests[1].messages[1] == AssistantMessage(text="One, two")


async def test_repeatable_calls_of_a_lost_worker_run_again_before_the_model_is_asked():
    """A3.9"""
    open_call = ToolCall(call_id="a", tool="look", arguments={})
    made_up = ToolResultsMessage(
        results=(ToolResult(call_id="a", tool="look", content=NO_RESULT_MESSAGE, success=False),)
    )
    messages = [UserMessage(text="Look."), AssistantMessage(text="", calls=(open_call,)), made_up]
    reciter = Reciter(say("Seen."))
    loop = loop_of(
        reciter,
        messages=messages,
        unfinished=UnfinishedWork(calls=(open_call,)),
        prior_runs=PriorRuns(calls=1, rounds=1),
    )
    parts = await play(loop)
    assert not of(parts, ToolCallAdded)
    assert reciter.requests[0].messages[2].results[0].content == "done"
    assert kinds(parts)[:3] == ["step.started", "ToolResultAdded", "step.finished"]
    assert [part.round for part in of(parts, StepStarted)] == [1, 2]
    assert parts[-1] == LoopAnswered()


async def test_a_turn_taken_over_after_its_tools_still_ends_with_a_closing_line():
    """A14.7 after a takeover"""
    made = ToolCall(call_id="a", tool="look", arguments={})
    group = ToolResultsMessage(results=(ToolResult(call_id="a", tool="look", content="seen"),))
    messages = [UserMessage(text="Look."), AssistantMessage(text="Looking.", calls=(made,)), group]
    empty = [ReplyFinished("stop")]
    taken_over = PriorRuns(calls=1, rounds=1, ran_tools=True)
    parts = await play(loop_of(Reciter(empty, empty), messages=messages, prior_runs=taken_over))
    assert of(parts, TextExtended)[-1].delta == CLOSING_LINE
    fresh = loop_of(Reciter(empty, empty), messages=[*messages, UserMessage(text="Again?")])
    assert (await play(fresh))[-1] == LoopFailed(code="no_response")


async def test_a_stop_amid_text_leaves_the_block_the_step_and_the_call_to_be_ended():
    """A1.6, A2.7, A19.5, A19.1: which says by what name to ask the provider about it"""
    reciter = Reciter([ResponseIdReceived("resp_7"), TextDelta("Once upon"), Silence()])
    loop = loop_of(reciter)
    parts = await play_until(loop, lambda parts: of(parts, TextExtended))
    assert reciter.closed == 1
    assert loop.open_block.row_id == of(parts, TextStarted)[0].row_id
    assert loop.open_step.step_id == of(parts, StepStarted)[0].step_id
    assert loop.open_calls == ()
    ended = loop.unrecorded_call()
    assert (ended.id, ended.aborted) == (of(parts, ModelCallStarted)[0].id, True)
    assert ended.response_id == "resp_7"


async def test_a_stop_while_arguments_stream_leaves_the_call_with_none():
    """A3.5"""
    loop = loop_of(Reciter([call("a", "look", '{"at'), Silence()]))
    await play_until(loop, lambda parts: of(parts, ToolProposed))
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

    toolbox = InMemoryToolbox(tools={"look": look, "hang": hang})
    loop = loop_of(Reciter(calls(call("a", "hang"), call("b", "look"))), toolbox=toolbox)
    parts = await play_until(loop, lambda parts: of(parts, ToolResultAdded))
    assert cancelled.is_set()
    assert [(left.call.call_id, left.made) for left in loop.open_calls] == [("a", True)]
    assert loop.open_calls[0].row_id == of(parts, ToolCallAdded)[0].row_id
    assert loop.unrecorded_call() is None
    assert loop.open_step is not None


async def test_nothing_is_left_open_after_an_answer():
    loop = loop_of(Reciter(calls(call("a", "look"), text="Hm."), say("Done.")))
    await play(loop)
    assert (loop.unrecorded_call(), loop.open_block, loop.open_calls, loop.open_step) == (
        None,
        None,
        (),
        None,
    )
