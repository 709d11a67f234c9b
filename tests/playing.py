"""A provider that recites, a recorder that keeps rows, and the rules every played loop must satisfy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from copilot.agent.loop import Loop
from copilot.agent.parts import (
    Answered,
    CallMade,
    Failed,
    ModelCallEnded,
    ModelCallStarted,
    NoteMade,
    NoticeMade,
    Produced,
    ReplayKept,
    ResultMade,
)
from copilot.agent.ports import Emit, ManualClock, MemoryFollowUps, MemoryToolbox, Ports
from copilot.events import (
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
from copilot.providers.base import (
    CallFragment,
    Entry,
    Finished,
    Item,
    ProviderFailure,
    Request,
    TextDelta,
    ToolCall,
    UserMessage,
)
from copilot.providers.strict import problems
from copilot.rows import Row
from copilot.tools.base import CallOutcome

ENTRY = Entry(name="Recital", provider="scripted", model="recital")
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


Line = Item | ProviderFailure | Silence


class Reciter:
    """Gives one prepared list of items per request; keeps the requests and how each stream was left."""

    def __init__(self, *replies: Sequence[Line]) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self.closed = 0

    async def stream(self, request: Request) -> AsyncIterator[Item]:
        self.requests.append(request)
        assert problems(request) == []
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
    return [*(TextDelta(delta) for delta in deltas), Finished(finish)]  # type: ignore[arg-type]


def call(call_id: str, tool: str, arguments: str = "{}", *, index: int = 0) -> CallFragment:
    return CallFragment(index=index, call_id=call_id, name=tool, arguments=arguments)


def calls(*fragments: CallFragment, text: str = "", finish: str = "tool_calls") -> list[Line]:
    spoken = [TextDelta(text)] if text else []
    numbered = [replace(fragment, index=index) for index, fragment in enumerate(fragments)]
    return [*spoken, *numbered, Finished(finish)]  # type: ignore[arg-type]


def outcome(call: ToolCall, content: str = "done", *, success: bool = True) -> CallOutcome:
    return CallOutcome(
        call_id=call.call_id,
        tool=call.tool,
        success=success,
        content=content,
        preview=content,
        duration_ms=1,
        truncated=False,
    )


async def look(call: ToolCall, emit: Emit) -> CallOutcome:
    return outcome(call)


def ports(reciter: Reciter, **changes) -> Ports:
    given = {
        "provider": lambda entry: reciter,
        "toolbox": MemoryToolbox(tools={"look": look, "write_file": look}),
        "follow_ups": MemoryFollowUps(),
        "clock": ManualClock(),
    }
    return Ports(**given | changes)


def loop_of(reciter: Reciter, *, text: str = "Hello", **changes) -> Loop:
    given = {name: changes.pop(name) for name in PORTS if name in changes}
    settings = {"system": "Be kind.", "messages": [UserMessage(text=text)], "chain": (ENTRY,)}
    return Loop(ports=ports(reciter, **given), **settings | changes)


async def play(loop: Loop) -> list[Produced]:
    return [part async for part in loop.play()]


def kinds(parts: Sequence[Produced]) -> list[str]:
    return [getattr(part, "kind", type(part).__name__) for part in parts]


def of(parts: Sequence[Produced], *classes: type) -> list:
    return [part for part in parts if isinstance(part, classes)]


class Keeper:
    """Rows as history would store them."""

    def __init__(self, *rows: Row) -> None:
        self._rows = {row.id: row for row in rows}

    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def add(self, row: Row) -> None:
        self._rows[row.id] = replace(row, turn_id=TURN, sequence=len(self._rows) + 1)

    def keep(self, part: Produced) -> None:
        match part:
            case TextStarted() | ReasoningStarted():
                kind = "assistant" if isinstance(part, TextStarted) else "reasoning"
                self.add(Row(id=part.row_id, kind=kind, streaming=True))
            case TextExtended() | ReasoningExtended():
                row = self._rows[part.row_id]
                assert part.offset == len(row.content)
                self._change(part.row_id, content=row.content + part.delta)
            case TextEnded() | ReasoningEnded():
                self._change(part.row_id, streaming=False)
            case StepRetracted():
                for row_id in part.row_ids:
                    self._change(row_id, hidden="retracted")
            case ReplayKept():
                row_id = str(part.row_id)
                self._change(row_id, replay=(*self._rows[row_id].replay, part.data))
            case _:
                self._keep_whole(part)

    def _keep_whole(self, part: Produced) -> None:
        match part:
            case CallMade(row_id=row_id, call=made):
                data = {"tool": made.tool, "arguments": made.arguments or {}}
                self.add(Row(id=str(row_id), kind="tool_call", call_id=made.call_id, data=data))
            case ResultMade(row_id=row_id, outcome=made):
                data = {"tool": made.tool, "success": made.success}
                self.add(
                    Row(
                        id=str(row_id),
                        kind="tool_result",
                        call_id=made.call_id,
                        content=made.content,
                        data=data,
                    )
                )
            case NoteMade(row_id=row_id, text=text):
                self.add(Row(id=str(row_id), kind="note", content=text))
            case NoticeMade(row_id=row_id, code=code):
                self.add(Row(id=str(row_id), kind="notice", data={"code": code}))
            case _:
                pass

    def _change(self, row_id: str, **fields) -> None:
        self._rows[row_id] = replace(self._rows[row_id], **fields)


def kept(parts: Sequence[Produced], *before: Row) -> list[Row]:
    keeper = Keeper(*before)
    for part in parts:
        keeper.keep(part)
    return keeper.rows()


def assert_well_ordered(parts: Sequence[Produced]) -> None:
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
            case CallMade() | ResultMade():
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
    endings = of(parts, Answered, Failed)
    assert len(endings) == 1
    assert parts[-1] is endings[0]
    made = [part.call.call_id for part in of(parts, CallMade)]
    assert sorted(made) == sorted(part.outcome.call_id for part in of(parts, ResultMade))
