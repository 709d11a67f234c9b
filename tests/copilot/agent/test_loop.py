"""The loop: rounds and the order inside them (A2, A8, A13, A14)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from uuid import uuid4

import pytest

from copilot.agent.guards import TurnLimits
from copilot.agent.model_context import build_context
from copilot.agent.outputs import (
    LoopAnswered,
    LoopFailed,
    NoteAdded,
    ReasoningReplayAdded,
    ToolCallAdded,
    ToolResultAdded,
)
from copilot.chat.message_rows import MessageRow
from copilot.providers.base import (
    AssistantMessage,
    CallFragment,
    ImagePart,
    ProviderFailure,
    ReasoningDelta,
    ReasoningReplay,
    ReplyFinished,
    TextDelta,
    ToolResultsMessage,
    UsageReported,
    UserMessage,
)
from copilot.providers.scripted import (
    Script,
    ScriptedCall,
    ScriptedFailure,
    ScriptedPause,
    ScriptedProvider,
    ScriptedReasoning,
    ScriptedReply,
    ScriptedText,
    ScriptedUsage,
    expect_last_text,
    expect_tool,
)
from copilot.realtime.events import TextExtended, ToolProgressed, ToolProposed
from copilot.realtime.payloads import Tokens
from copilot.tools.calls import MALFORMED_ARGUMENTS_MESSAGE, REPLY_BROKEN_OFF_MESSAGE
from tests.support.agent_doubles import InMemoryFollowUps, InMemoryToolbox, ManualClock
from tests.support.agent_loop import (
    ENTRY,
    TURN,
    Keeper,
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
    output_of,
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
    ReplyFinished("tool_calls"),
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
        "LoopAnswered",
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
        ReplyFinished("stop"),
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
        "ToolCallAdded",
        "ToolResultAdded",
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
        assert parts[-1] == LoopFailed(code=code)
    else:
        assert parts[-1] == LoopAnswered()
        user = MessageRow(id="u", kind="user", content="Hello")
        rebuilt = build_context(kept(parts, user)[:-1], turn_id=TURN, entry=ENTRY)
        assert rebuilt == tuple(loop.messages[:-1])


@pytest.mark.parametrize("index", range(len(FULL_REPLY)))
async def test_every_call_that_was_shown_has_a_result_when_the_turn_fails(index):
    """A3.5: a call whose arguments still streamed is stored with {}."""
    parts = await play(loop_of(Reciter([*FULL_REPLY[:index], ProviderFailure("quota_exhausted")])))
    assert_well_ordered(parts)
    proposed = [part.call_id for part in of(parts, ToolProposed)]
    assert [part.call.call_id for part in of(parts, ToolCallAdded)] == proposed
    assert all(part.call.arguments == {} for part in of(parts, ToolCallAdded))
    assert {part.outcome.content for part in of(parts, ToolResultAdded)} <= {REPLY_BROKEN_OFF_MESSAGE}


def test_importing_the_loop_loads_no_framework():
    """A2.c2"""
    modules = "copilot.agent.loop, copilot.agent.model_context, tests.support.event_reducer, copilot.tools.calls, sys"
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
    loop = loop_of(reciter, toolbox=InMemoryToolbox(tools={"slow": slow, "quick": quick}))
    parts = await play(loop)
    assert [part.outcome.call_id for part in of(parts, ToolResultAdded)] == ["b", "a"]
    assert kinds(parts).index("tool.progressed") < kinds(parts).index("ToolResultAdded")
    assert [result.content for result in loop.messages[2].results] == ["slow", "quick"]
    assert_well_ordered(parts)


async def test_each_later_request_begins_with_the_earlier_one():
    """A15.9: the loop itself never rewrites what it has sent."""
    reciter = Reciter(
        calls(call("a", "look"), text="One."), calls(call("b", "look"), text="Two."), say("End.")
    )
    await play(loop_of(reciter, follow_ups=InMemoryFollowUps([(UserMessage(text="and?"),)])))
    for earlier, later in zip(reciter.requests, reciter.requests[1:], strict=False):
        assert later.messages[: len(earlier.messages)] == earlier.messages
        assert (later.system, later.tools) == (earlier.system, earlier.tools)


async def test_calls_cut_by_the_output_limit_are_dropped_and_the_model_is_informed():
    """A8.c2, A8.4"""
    cut = calls(call("a", "look"), call("b", "write_file", '{"te'), text="Writing.", finish="length")
    loop = loop_of(Reciter(cut, say("Shorter now.")))
    parts = await play(loop)
    assert not of(parts, ToolCallAdded)
    assert "look, write_file" in of(parts, NoteAdded)[0].text
    assert loop.rounds == 2
    assert loop.messages[1] == AssistantMessage(text="Writing.")
    assert_well_ordered(parts)


async def test_two_malformed_calls_get_two_error_results_and_one_note_and_never_run():
    """A8.c1, A8.2, A8.3"""
    broken = calls(call("a", "write_file", '{"text": "unfin'))
    toolbox = InMemoryToolbox(tools={"write_file": look})
    loop = loop_of(Reciter(broken, broken, say("I give up.")), toolbox=toolbox)
    parts = await play(loop)
    assert [part.outcome.content for part in of(parts, ToolResultAdded)] == [
        MALFORMED_ARGUMENTS_MESSAGE,
        MALFORMED_ARGUMENTS_MESSAGE,
    ]
    assert of(parts, ToolCallAdded)[0].call.raw_arguments == '{"text": "unfin'
    assert [call.arguments for m in loop.messages if isinstance(m, AssistantMessage) for call in m.calls] == [
        {},
        {},
    ]
    assert len(of(parts, NoteAdded)) == 1
    assert toolbox.ran == []


async def test_an_id_the_conversation_already_knows_is_renamed():
    """A8.1, A9.8: a second result under one id could not be stored."""
    parts = await play(loop_of(Reciter(calls(call("a", "look")), calls(call("a", "look")), say("Twice."))))
    first, second = (part.call.call_id for part in of(parts, ToolCallAdded))
    assert first == "a"
    assert second != "a"
    assert [part.call_id for part in of(parts, ToolProposed)] == [first, second]


async def test_the_seventeenth_call_is_answered_and_not_run():
    """A8.7"""
    toolbox = InMemoryToolbox(tools={"look": look})
    many = calls(*(call(f"c{number}", "look") for number in range(18)))
    parts = await play(loop_of(Reciter(many, say("Enough.")), toolbox=toolbox))
    assert len(toolbox.ran) == 16
    assert [part.outcome.success for part in of(parts, ToolResultAdded)].count(False) == 2


async def test_follow_ups_come_after_the_whole_group_and_not_when_a_limit_ends_the_turn():
    """A13.5, A13.7"""
    waiting = [(UserMessage(text="<user_follow_up>first</user_follow_up>"),), (UserMessage(text="second"),)]
    reciter = Reciter(calls(call("a", "look"), call("b", "look")), calls(call("c", "look")))
    follow_ups = InMemoryFollowUps(waiting)
    loop = loop_of(reciter, follow_ups=follow_ups, limits=TurnLimits(max_rounds=2))
    await play(loop)
    assert isinstance(reciter.requests[1].messages[-2], ToolResultsMessage)
    assert reciter.requests[1].messages[-1].text.startswith("<user_follow_up>first")
    assert await follow_ups.take_follow_ups() == (UserMessage(text="second"),)


async def test_opaque_reasoning_goes_back_inside_the_tool_loop_and_is_kept_with_a_row():
    """A14.3, A14.4"""
    thinking = [
        ReasoningDelta("hm"),
        ReasoningReplay('"signed"'),
        call("a", "look"),
        ReplyFinished("tool_calls"),
    ]
    hidden = [ReasoningReplay('"redacted"'), call("b", "look"), ReplyFinished("tool_calls")]
    reciter = Reciter(thinking, hidden, say("Done."))
    loop = loop_of(reciter)
    parts = await play(loop)
    assert [m.replay for m in loop.messages if isinstance(m, AssistantMessage)] == [
        ('"signed"',),
        ('"redacted"',),
        (),
    ]
    rows = kept(parts, MessageRow(id="u", kind="user", content="Hello"))
    assert {row.kind for row in rows if row.replay} == {"reasoning", "tool_call"}
    assert len(of(parts, ReasoningReplayAdded)) == 2
    assert list(build_context(rows[:-1], turn_id=TURN, entry=ENTRY)) == loop.messages[:-1]


PICTURED = {
    "native": ({"supports_images": True, "media_in_tool_results": True}, ["done", "done"], 1),
    "behind the group": ({"supports_images": True}, ["done\n\n[1 picture: see attachment]", "done"], 0),
    "in words": ({}, ["done\n\n[image not shown: cat.png, image/png, 0.0 KB]", "done"], 0),
}


@pytest.mark.parametrize("how", PICTURED)
async def test_pictures_in_results_go_where_the_model_takes_them(how):
    """A9.9, A9.c3: both results adjacent, then at most one user message"""
    can, texts, native = PICTURED[how]
    picture = ImagePart(mime="image/png", data=b"png", name="cat.png")

    async def show(made, emit):
        return replace(outcome(made), media=(picture,))

    reciter = Reciter(calls(call("a", "show"), call("b", "look")), say("A cat."))
    toolbox = InMemoryToolbox(tools={"show": show, "look": look})
    await play(loop_of(reciter, toolbox=toolbox, chain=(replace(ENTRY, **can),)))
    messages = reciter.requests[1].messages
    at = next(place for place, message in enumerate(messages) if isinstance(message, ToolResultsMessage))
    assert [result.content for result in messages[at].results] == texts
    assert sum(len(result.images) for result in messages[at].results) == native
    after = [(message.images, "cat.png" in message.text) for message in messages[at + 1 :]]
    assert after == ([((picture,), True)] if how == "behind the group" else [])


async def test_the_turn_can_read_what_the_loop_took():
    """A3.6, A19.9: generating is from a reply's first delta to its last; tools and waits are not"""
    clock = ManualClock(100.0)

    async def slow(made, emit):
        clock.advance(30)
        return outcome(made)

    script = Script(
        [
            ScriptedText("a"),
            ScriptedPause(2),
            ScriptedText("b"),
            ScriptedCall("slow"),
            ScriptedUsage(Tokens(input=5, output=2)),
        ],
        [
            ScriptedPause(5),
            ScriptedText("c"),
            ScriptedPause(1),
            ScriptedText("d"),
            ScriptedUsage(Tokens(input=9, output=4)),
        ],
    )
    toolbox = InMemoryToolbox(tools={"slow": slow})
    loop = loop_of(ScriptedProvider(script, clock), clock=clock, toolbox=toolbox)
    await play(loop)
    assert loop.client.tokens == Tokens(input=14, output=6)
    assert (loop.rounds, loop.client.first_token_at, loop.client.generation_seconds) == (2, 100.0, 3.0)
    assert loop.client.entry is ENTRY


async def test_rows_kept_while_playing_build_the_conversation_the_loop_had():
    """A33.c5, A16: reload and live agree, follow-ups and notes included."""
    keeper = Keeper(MessageRow(id="u", kind="user", content="Hello"))

    class Stored:
        async def take_follow_ups(self):
            row = MessageRow(
                id=str(uuid4()), kind="user", mid_turn=True, data={"follow_up": "<user_follow_up/>"}
            )
            keeper.add(row)
            return (UserMessage(text="<user_follow_up/>"),)

    reciter = Reciter(
        [
            TextDelta("A"),
            ReasoningDelta("hm"),
            TextDelta("B"),
            call("a", "look"),
            ReplyFinished("tool_calls"),
        ],
        calls(call("b", "nonsense"), call("c", "look", '{"b": 1, "a": [2]}'), text="More."),
        calls(call("d", "write_file", "{"), finish="length", text="Cut"),
        say("End."),
    )
    loop = loop_of(reciter, follow_ups=Stored(), limits=TurnLimits(max_rounds=4))
    output_of(loop).on_emit = lambda parts: keeper.keep(parts[-1])
    await loop.run()
    before_answer = keeper.rows()[:-1]
    assert list(build_context(before_answer, turn_id=TURN, entry=ENTRY)) == loop.messages[:-1]


async def test_the_scripted_provider_plays_a_whole_turn():
    """A2.1: loop, scripted provider and in-memory ports are all it takes."""
    script = Script(
        [
            ScriptedReasoning("I should look.", signature="s"),
            ScriptedText("Looking.", size=3),
            ScriptedCall("look", {"at": "x"}, pieces=3),
        ],
        [ScriptedFailure("overloaded")],
        ScriptedReply(
            [ScriptedText("There it is.", size=1)], requires=[expect_last_text("done"), expect_tool("look")]
        ),
    )
    loop = loop_of(ScriptedProvider(script))
    parts = await play(loop)
    assert script.mismatches == []
    assert of(parts, ToolCallAdded)[0].call.arguments == {"at": "x"}
    assert [row.content for row in kept(parts) if row.kind == "assistant"] == ["Looking.", "There it is."]
    assert (loop.rounds, len(script.requests), parts[-1]) == (2, 3, LoopAnswered())
    assert_well_ordered(parts)
