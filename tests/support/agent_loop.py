"""A provider that recites, a recorder that keeps rows, and the rules every played loop must satisfy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from uuid import uuid4

from copilot.agent.interfaces import EmitEvent, LoopPorts
from copilot.agent.loop import AgentLoop
from copilot.agent.outputs import (
    LoopAnswered,
    LoopEnding,
    LoopFailed,
    LoopOutput,
    ModelCallEnded,
    ModelCallStarted,
    NoteAdded,
    NoticeAdded,
    ReasoningReplayAdded,
    ToolCallAdded,
    ToolResultAdded,
)
from copilot.chat.message_rows import MessageRow
from copilot.providers.base import (
    CallFragment,
    CatalogueEntry,
    ModelRequest,
    ProviderFailure,
    ReplyFinished,
    StreamItem,
    TextDelta,
    ToolCall,
    UserMessage,
)
from copilot.providers.learned_limits import LearnedLimitsCache
from copilot.providers.request_validation import find_request_problems
from copilot.realtime.events import (
    ReasoningEnded,
    ReasoningExtended,
    ReasoningStarted,
    StepFinished,
    StepRetracted,
    StepStarted,
    TextEnded,
    TextExtended,
    TextStarted,
)
from copilot.tools.base import ToolCallOutcome
from tests.support.agent_doubles import (
    CollectedOutput,
    InMemoryApprovalPolicy,
    InMemoryBudget,
    InMemoryCompactor,
    InMemoryFollowUps,
    InMemoryModelHealth,
    InMemoryToolbox,
    ManualClock,
    keep_credential,
)

ENTRY = CatalogueEntry(name="Recital", provider="scripted", model="recital")
TURN = "turn-1"
PORTS = (
    "approvals",
    "toolbox",
    "follow_ups",
    "clock",
    "budget",
    "compactor",
    "learned",
    "credential",
    "health",
)


class Silence:
    """The provider sends nothing more."""


Line = StreamItem | ProviderFailure | Silence


class Reciter:
    """Gives one prepared list of items per request; keeps the requests and how each stream was left."""

    def __init__(self, *replies: Sequence[Line]) -> None:
        self.replies = list(replies)
        self.requests: list[ModelRequest] = []
        self.closed = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        self.requests.append(request)
        assert find_request_problems(request) == []
        try:
            for line in self.replies[len(self.requests) - 1]:
                await asyncio.sleep(0)
                if isinstance(line, ProviderFailure):
                    raise line
                if isinstance(line, Silence):
                    await asyncio.Event().wait()
                else:
                    yield line
        finally:
            self.closed += 1


def say(*deltas: str, finish: str = "stop") -> list[Line]:
    return [*(TextDelta(delta) for delta in deltas), ReplyFinished(finish)]  # type: ignore[arg-type]


def call(call_id: str, tool: str, arguments: str = "{}", *, index: int = 0) -> CallFragment:
    return CallFragment(index=index, call_id=call_id, name=tool, arguments=arguments)


def calls(*fragments: CallFragment, text: str = "", finish: str = "tool_calls") -> list[Line]:
    spoken = [TextDelta(text)] if text else []
    numbered = [replace(fragment, index=index) for index, fragment in enumerate(fragments)]
    return [*spoken, *numbered, ReplyFinished(finish)]  # type: ignore[arg-type]


def outcome(call: ToolCall, content: str = "done", *, success: bool = True) -> ToolCallOutcome:
    return ToolCallOutcome(
        call_id=call.call_id,
        tool=call.tool,
        success=success,
        content=content,
        preview=content,
        duration_ms=1,
        truncated=False,
    )


async def look(call: ToolCall, emit: EmitEvent) -> ToolCallOutcome:
    return outcome(call)


def ports(reciter: Reciter, **changes) -> LoopPorts:
    given = {
        "output": CollectedOutput(),
        "provider": lambda entry: reciter,
        "toolbox": InMemoryToolbox(tools={"look": look, "write_file": look}),
        "approvals": InMemoryApprovalPolicy(),
        "follow_ups": InMemoryFollowUps(),
        "budget": InMemoryBudget(),
        "compactor": InMemoryCompactor(),
        "clock": ManualClock(),
        "call_id": lambda number: uuid4(),
        "learned": LearnedLimitsCache(),
        "health": InMemoryModelHealth(),
        "credential": keep_credential,
    }
    return LoopPorts(**given | changes)


def loop_of(reciter: Reciter, *, text: str = "Hello", **changes) -> AgentLoop:
    given = {name: changes.pop(name) for name in PORTS if name in changes}
    settings = {"system": "Be kind.", "messages": [UserMessage(text=text)], "chain": (ENTRY,)}
    return AgentLoop(ports=ports(reciter, **given), **settings | changes)


def output_of(loop: AgentLoop) -> CollectedOutput:
    output = loop._output
    assert isinstance(output, CollectedOutput)
    return output


async def play(loop: AgentLoop) -> list[LoopOutput | LoopEnding]:
    """Run the loop and give what it emitted this time, then its ending."""
    output = output_of(loop)
    before = len(output.parts)
    ending = await loop.run()
    return [*output.parts[before:], ending]


def kinds(parts: Sequence[LoopOutput]) -> list[str]:
    return [getattr(part, "kind", type(part).__name__) for part in parts]


def of(parts: Sequence[LoopOutput], *classes: type) -> list:
    return [part for part in parts if isinstance(part, classes)]


class Keeper:
    """Rows as history would store them."""

    def __init__(self, *rows: MessageRow) -> None:
        self._rows = {row.id: row for row in rows}

    def rows(self) -> list[MessageRow]:
        return list(self._rows.values())

    def add(self, row: MessageRow) -> None:
        self._rows[row.id] = replace(row, turn_id=TURN, sequence=len(self._rows) + 1)

    def keep(self, part: LoopOutput) -> None:
        match part:
            case TextStarted() | ReasoningStarted():
                kind = "assistant" if isinstance(part, TextStarted) else "reasoning"
                self.add(MessageRow(id=part.row_id, kind=kind, streaming=True))
            case TextExtended() | ReasoningExtended():
                row = self._rows[part.row_id]
                assert part.offset == len(row.content)
                self._change(part.row_id, content=row.content + part.delta)
            case TextEnded() | ReasoningEnded():
                self._change(part.row_id, streaming=False)
            case StepRetracted():
                for row_id in part.row_ids:
                    self._change(row_id, hidden="retracted")
            case ReasoningReplayAdded():
                row_id = str(part.row_id)
                self._change(row_id, replay=(*self._rows[row_id].replay, part.data))
            case _:
                self._keep_whole(part)

    def _keep_whole(self, part: LoopOutput) -> None:
        match part:
            case ToolCallAdded(row_id=row_id, call=made):
                data = {"tool": made.tool, "arguments": made.arguments or {}}
                self.add(MessageRow(id=str(row_id), kind="tool_call", call_id=made.call_id, data=data))
            case ToolResultAdded(row_id=row_id, outcome=made):
                data = {"tool": made.tool, "success": made.success}
                self.add(
                    MessageRow(
                        id=str(row_id),
                        kind="tool_result",
                        call_id=made.call_id,
                        content=made.content,
                        data=data,
                    )
                )
            case NoteAdded(row_id=row_id, text=text):
                self.add(MessageRow(id=str(row_id), kind="note", content=text))
            case NoticeAdded(row_id=row_id, code=code):
                self.add(MessageRow(id=str(row_id), kind="notice", data={"code": code}))
            case _:
                pass

    def _change(self, row_id: str, **fields) -> None:
        self._rows[row_id] = replace(self._rows[row_id], **fields)


def kept(parts: Sequence[LoopOutput], *before: MessageRow) -> list[MessageRow]:
    keeper = Keeper(*before)
    for part in parts:
        keeper.keep(part)
    return keeper.rows()


def assert_well_ordered(parts: Sequence[LoopOutput]) -> None:
    """A2.7 and A2.8, and a model call's end for every beginning."""
    step: str | None = None
    block: str | None = None
    seen_blocks: set[str] = set()
    model_call = None
    for part in parts:
        match part:
            case StepStarted():
                assert step is None
                step = part.step_id
            case StepFinished() | StepRetracted():
                assert (step, block, model_call) == (part.step_id, None, None)
                step = None
            case TextStarted() | ReasoningStarted():
                assert step is not None
                assert block is None
                assert part.block_id not in seen_blocks
                block = part.block_id
                seen_blocks.add(block)
            case TextExtended() | ReasoningExtended():
                assert block == part.block_id
                assert part.delta
            case TextEnded() | ReasoningEnded():
                assert block == part.block_id
                block = None
            case ToolCallAdded() | ToolResultAdded():
                assert (block, model_call) == (None, None)
                assert step is not None
            case ModelCallStarted():
                model_call = part.id
            case ModelCallEnded():
                assert model_call == part.id
                model_call = None
            case _:
                pass
    assert (step, block, model_call) == (None, None, None)
    endings = of(parts, LoopAnswered, LoopFailed)
    assert len(endings) == 1
    assert parts[-1] is endings[0]
    made = [part.call.call_id for part in of(parts, ToolCallAdded)]
    assert sorted(made) == sorted(part.outcome.call_id for part in of(parts, ToolResultAdded))


async def play_until(loop, condition):
    """Play in a task of its own, cancel it when `condition` holds, and give what was produced."""
    reached = asyncio.Event()
    output = output_of(loop)
    output.on_emit = lambda parts: reached.set() if condition(parts) else None
    task = asyncio.create_task(loop.run())
    await reached.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    return output.parts
