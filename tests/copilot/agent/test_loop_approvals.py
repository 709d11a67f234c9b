"""The loop asks before it acts: what may run runs, then it pauses; a resumed one continues (A11.3, A11.6)."""

from __future__ import annotations

from dataclasses import replace

from copilot.agent.guards import PriorRuns
from copilot.agent.loop import UnfinishedWork
from copilot.agent.outputs import LoopAnswered, LoopPaused, ToolCallAdded, ToolResultAdded
from copilot.providers.base import AssistantMessage, ToolCall, ToolResult, ToolResultsMessage, UserMessage
from copilot.realtime.events import StepFinished, ToolStateChanged
from tests.support.agent_doubles import InMemoryApprovalPolicy, InMemoryToolbox
from tests.support.agent_loop import Reciter, call, calls, look, loop_of, of, play, say


async def test_free_calls_run_first_and_the_others_are_asked_for():
    """A11.3: one ending of the run, no further request"""
    reciter = Reciter(calls(call("a", "write_file"), call("b", "look"), call("c", "write_file")))
    loop = loop_of(reciter, approvals=InMemoryApprovalPolicy(asks={"write_file": "It writes."}))
    parts = await play(loop)
    assert [part.outcome.call_id for part in of(parts, ToolResultAdded)] == ["b"]
    assert len(of(parts, ToolCallAdded)) == 3
    assert parts[-1] is of(parts, LoopPaused)[0]
    assert [(one.call.call_id, one.reason) for one in parts[-1].calls] == [
        ("a", "It writes."),
        ("c", "It writes."),
    ]
    waiting = [part.call_id for part in of(parts, ToolStateChanged) if part.state == "waiting"]
    assert waiting == ["a", "c"]
    assert [part.finish_reason for part in of(parts, StepFinished)] == ["paused"]
    assert len(reciter.requests) == 1


async def test_waiting_calls_are_still_open_for_an_interruption():
    """A3.5: a stop between the pause and its rows leaves no call without a result"""
    loop = loop_of(
        Reciter(calls(call("a", "write_file"))), approvals=InMemoryApprovalPolicy(asks={"write_file": "!"})
    )
    await play(loop)
    assert [(one.call.call_id, one.made) for one in loop.open_calls] == [("a", True)]
    assert loop.open_step is None


async def test_calls_that_cannot_run_are_answered_and_nobody_is_asked():
    """A8.6: unknown, malformed and surplus calls never reach the approvals"""
    approvals = InMemoryApprovalPolicy(asks={"write_file": "!"})
    reciter = Reciter(calls(call("a", "nothing"), call("b", "write_file", "{")), say("Sorry."))
    parts = await play(loop_of(reciter, approvals=approvals))
    assert approvals.judged == []
    assert isinstance(parts[-1], LoopAnswered)


async def test_a_resumed_run_executes_what_was_approved_and_tells_of_the_change():
    """A11.6, A11.10: in the group's place, with the note before the result"""
    approved = ToolCall(call_id="a", tool="look", arguments={"at": "the sea"})
    done = ToolResult(call_id="b", tool="look", content="seen", success=True)
    messages = [
        UserMessage(text="Hello"),
        AssistantMessage(
            text="", calls=(replace(approved, arguments={}), replace(approved, call_id="b", arguments={}))
        ),
        ToolResultsMessage(results=(ToolResult(call_id="a", tool="look", content="?", success=False), done)),
    ]
    toolbox = InMemoryToolbox(tools={"look": look})
    reciter = Reciter(say("Done."))
    loop = loop_of(
        reciter,
        messages=messages,
        toolbox=toolbox,
        unfinished=UnfinishedWork(calls=(approved,), notes={"a": "Changed. "}),
        prior_runs=PriorRuns(calls=1),
    )
    parts = await play(loop)
    assert toolbox.ran == [approved]
    [made] = of(parts, ToolResultAdded)
    assert made.outcome.content == "Changed. done"
    [group] = [one for one in reciter.requests[0].messages if isinstance(one, ToolResultsMessage)]
    assert [result.content for result in group.results] == ["Changed. done", "seen"]
    assert isinstance(parts[-1], LoopAnswered)
