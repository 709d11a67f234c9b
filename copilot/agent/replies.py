"""One try of a round: a request goes out, its stream becomes blocks, rows and a reply or a failure (A2.7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never
from uuid import UUID, uuid4

from copilot.agent.conversation import join_text
from copilot.agent.metering import Meter
from copilot.agent.parts import CallEnding, Produced, ReplayKept
from copilot.agent.ports import closed
from copilot.agent.steps import UNUSABLE, Reply
from copilot.events import (
    ReasoningEnded,
    ReasoningExtended,
    ReasoningStarted,
    StepFinished,
    StepStarted,
    TextEnded,
    TextExtended,
    TextStarted,
    ToolProposed,
)
from copilot.providers.base import (
    CallFragment,
    Entry,
    Finished,
    Item,
    Provider,
    ProviderFailure,
    ReasoningDelta,
    ReasoningReplay,
    ReplyNamed,
    Request,
    TextDelta,
    ToolCall,
    UsageReported,
)
from copilot.rows import storable
from copilot.tools.calls import Assembler


@dataclass(frozen=True, kw_only=True)
class Continuing:
    """A text row that was interrupted: the first text of the next reply goes on in it."""

    row_id: UUID
    length: int
    block_id: str = ""  # of the block that still stands open in this run


@dataclass(kw_only=True)
class Step:
    """One try of a round, as clients see it."""

    round: int
    id: str = field(default_factory=lambda: str(uuid4()))
    over: bool = False
    call: int = 0

    def started(self) -> StepStarted:
        return StepStarted(step_id=self.id, round=self.round, call=self.call)

    def finished(self, reason: str) -> StepFinished:
        return StepFinished(step_id=self.id, round=self.round, finish_reason=reason)

    def finish(self, reason: str) -> Iterator[Produced]:
        yield self.finished(reason)
        self.over = True


@dataclass
class Block:
    """Text or reasoning while it streams into its row."""

    kind: Literal["text", "reasoning"]
    row_id: UUID = field(default_factory=uuid4)
    block_id: str = field(default_factory=lambda: str(uuid4()))
    length: int = 0  # of the row, in characters
    parts: list[str] = field(default_factory=list)
    synthetic: bool = False
    row_name: str = field(init=False)  # made once: every delta names its row

    def __post_init__(self) -> None:
        self.row_name = str(self.row_id)

    @classmethod
    def resuming(cls, continuing: Continuing) -> Block:
        resumed = cls("text", row_id=continuing.row_id, length=continuing.length)
        resumed.block_id = continuing.block_id or resumed.block_id
        return resumed

    def left_open(self) -> Continuing:
        return Continuing(row_id=self.row_id, length=self.length, block_id=self.block_id)

    def started(self) -> TextStarted | ReasoningStarted:
        if self.kind == "reasoning":
            return ReasoningStarted(block_id=self.block_id, row_id=self.row_name)
        return TextStarted(block_id=self.block_id, row_id=self.row_name, synthetic=self.synthetic)

    def extended(self, delta: str) -> TextExtended | ReasoningExtended:
        cls = TextExtended if self.kind == "text" else ReasoningExtended
        event = cls(block_id=self.block_id, row_id=self.row_name, offset=self.length, delta=delta)
        self.length += len(delta)
        self.parts.append(delta)
        return event

    def ended(self) -> TextEnded | ReasoningEnded:
        cls = TextEnded if self.kind == "text" else ReasoningEnded
        return cls(block_id=self.block_id, row_id=self.row_name)


class Attempt:
    """Plays one request. Afterwards either `reply` or `failure` is there."""

    def __init__(
        self,
        request: Request,
        *,
        step: Step,
        meter: Meter,
        taken_ids: Collection[str] = (),
        continuing: Continuing | None = None,
        may_be_cut: bool = False,
        goes_on: bool = False,
    ) -> None:
        """`may_be_cut`: text that the output limit cuts stays open; `goes_on`: this is the rest of such a text."""
        self.step = step
        self.meter = meter
        self.cut: Continuing | None = None  # the text that stayed open
        self.reply: Reply | None = None
        self.failure: ProviderFailure | None = None
        self.block: Block | None = None  # the one that is open
        self.blocks: list[Block] = []
        self.resumed: Block | None = None  # the interrupted row, once and if it goes on
        self.request = request
        self._known = frozenset(tool.name for tool in request.tools)
        self._assembler = Assembler(taken_ids)
        self._continuing = continuing
        self._may_be_cut = may_be_cut
        self._goes_on = goes_on
        self._leading = ""  # white space that opens no block until something follows it
        self._replay: list[str] = []
        self._finished: Finished | None = None

    @property
    def shown(self) -> bool:
        """Clients have seen text or calls that are this step's own (A7.3)."""
        return any(block.kind == "text" for block in self.rows) or bool(self.proposed())

    @property
    def rows(self) -> list[Block]:
        """The rows that this step itself has made."""
        return [block for block in self.blocks if block is not self.resumed]

    def proposed(self) -> list[ToolCall]:
        return self._assembler.proposed()

    async def play(self, provider_for: Callable[[Entry], Provider]) -> AsyncIterator[Produced]:
        if not self._goes_on:
            yield self.step.started()
        yield self.meter.started()
        try:
            provider = provider_for(self.request.entry)
            async with closed(provider.stream(self.request)) as items:
                async for item in items:
                    for event in self._receive(item):
                        yield event
            self.reply = self._complete()
        except ProviderFailure as failure:
            self.failure = failure
        for event in self._end_of_stream():
            yield event
        yield self._measured()
        self.meter.settled = True

    def say(self, text: str) -> Iterator[Produced]:
        """A whole text block that the server writes in the model's place."""
        self.block = Block("text", synthetic=True)
        self.blocks.append(self.block)
        yield self.block.started()
        yield self.block.extended(text)
        yield from self._close_block()

    def _measured(self) -> Produced:
        failure = self.failure
        ending = failure.code if failure else _ending(self.reply)
        unusable = failure is not None or ending in UNUSABLE.values()
        return self.meter.ended(
            aborted=failure is not None,
            refused=failure is not None and failure.refused_before_work,
            response_id=self.response_id or (failure.request_id if failure else ""),
            ending=ending,
            partial=unusable and self.shown,
        )

    @property
    def response_id(self) -> str:
        """As the provider names the reply that came to its end."""
        return self._finished.response_id if self._finished else ""

    # --- items ---------------------------------------------------------------------------------------

    def _receive(self, item: Item) -> Iterator[Produced]:
        match item:
            case TextDelta():
                return self._extend("text", self._visible(item.text))
            case ReasoningDelta():
                return self._think(item.text)
            case CallFragment():
                return self._add_fragment(item)
            case ReasoningReplay():
                self._replay.append(item.data)
            case UsageReported():
                self.meter.report(item)
            case ReplyNamed():
                self.meter.name = item.response_id
            case Finished():
                self._finished = item
            case unreachable:
                assert_never(unreachable)
        return iter(())

    def _visible(self, delta: str) -> str:
        """Nothing until a text block has something to show: models put blank lines in front of calls."""
        if self._continuing or (self.block is not None and self.block.kind == "text"):
            return delta
        text = (self._leading + delta).lstrip("\r\n")
        self._leading = "" if text.strip() else text
        return text if not self._leading else ""

    def _think(self, delta: str) -> Iterator[Produced]:
        """Not in the middle of a text: blocks never overlap (A2.7)."""
        if self._goes_on and self._continuing is not None:
            self.meter.count(len(delta))
            return iter(())
        return self._extend("reasoning", delta)

    def _extend(self, kind: Literal["text", "reasoning"], delta: str) -> Iterator[Produced]:
        delta = storable(delta)
        if not delta:
            return
        self.meter.count(len(delta))
        if self.block is None or self.block.kind != kind:
            yield from self._close_block()
            yield from self._open_block(kind)
        if self.block is not None:
            yield self.block.extended(delta)

    def _open_block(self, kind: Literal["text", "reasoning"]) -> Iterator[Produced]:
        if kind == "text" and self._continuing is not None:
            self.block = self._resume(self._continuing)
        else:
            self.block = Block(kind)
        self.blocks.append(self.block)
        if self.block is not self.resumed:
            yield self.block.started()

    def _resume(self, continuing: Continuing) -> Block:
        self._continuing = None
        self.resumed = Block.resuming(continuing)
        return self.resumed

    def _close_block(self) -> Iterator[Produced]:
        if self.block is not None:
            yield self.block.ended()
            self.block = None
            self._leading = ""

    def _add_fragment(self, fragment: CallFragment) -> Iterator[Produced]:
        self.meter.count(len(fragment.name) + len(fragment.arguments))
        yield from self._close_block()
        self._assembler.add(fragment)
        for call in self._assembler.newly_named(self._known):
            yield ToolProposed(call_id=call.call_id, tool=call.tool)

    # --- the end -------------------------------------------------------------------------------------

    def _complete(self) -> Reply:
        if self._finished is None:
            sent_nothing = self.meter.first_at is None
            raise ProviderFailure("no_response" if sent_nothing else "malformed_stream", details="no ending")
        calls = self._assembler.complete()
        if not all(call.tool for call in calls):
            raise ProviderFailure("malformed_stream", details="a tool call without a name")
        return Reply(
            text=join_text(*("".join(block.parts) for block in self.blocks if block.kind == "text")),
            calls=calls,
            finish=self._finished.reason,
            replay=tuple(self._replay),
        )

    def joined_to(self, said: Reply) -> Reply:
        """The reply of which `said` is the beginning and this the rest; what failed is cut where it failed."""
        rest = "".join(self.resumed.parts) if self.resumed else ""
        further = ("".join(block.parts) for block in self.rows if block.kind == "text")
        whole = self.reply or replace(said, replay=())
        text = join_text(said.text + rest, *further)
        return replace(whole, text=text, replay=said.replay + whole.replay)

    def _end_of_stream(self) -> Iterator[Produced]:
        block = self.block
        if self._may_be_cut and block is not None and block.kind == "text" and _is_cut(self.reply):
            self.cut, self.block = block.left_open(), None
            return
        yield from self._close_block()
        if self.reply is None:
            return
        if self._continuing is not None:  # nothing was added: the interrupted row ends as it was
            yield self._resume(self._continuing).ended()
        for call in self._assembler.unproposed():
            yield ToolProposed(call_id=call.call_id, tool=call.tool)


def _ending(reply: Reply | None) -> CallEnding:
    if reply is None:
        return ""
    if (code := UNUSABLE.get(reply.finish)) is not None:
        return code
    if reply.calls:
        return "called"
    return "cut" if _is_cut(reply) else "answered"


def _is_cut(reply: Reply | None) -> bool:
    """The output limit came, and not inside a call (A2.4)."""
    return reply is not None and reply.finish == "length" and not reply.calls


def kept_replay(attempt: Attempt, reply: Reply, calls: Mapping[str, UUID]) -> Iterator[Produced]:
    """Opaque data stands with the step's first row; the tool loop needs it, also after a takeover (A14.4)."""
    rows = [block.row_id for block in attempt.rows] or list(calls.values())
    for data in reply.replay:
        yield ReplayKept(row_id=rows[0], data=data)
