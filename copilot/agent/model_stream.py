"""Turn the stream of one model call into blocks, rows and a reply or failure, and choose the next step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never
from uuid import UUID, uuid4

from config.core.text import make_storable
from copilot.agent.guards import RoundState
from copilot.agent.interfaces import OutputSink, aclosing_iterator
from copilot.agent.model_context import join_text
from copilot.agent.outputs import LoopOutput, ModelCallEnding, ReasoningReplayAdded
from copilot.agent.token_meters import ModelCallMeter
from copilot.providers.base import (
    CallFragment,
    CatalogueEntry,
    FailureCode,
    FinishReason,
    ModelRequest,
    Provider,
    ProviderFailure,
    ReasoningDelta,
    ReasoningReplay,
    ReplyFinished,
    ResponseIdReceived,
    StreamItem,
    TextDelta,
    ToolCall,
    UsageReported,
)
from copilot.realtime.events import (
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
from copilot.tools.calls import ToolCallAssembler


@dataclass(frozen=True, kw_only=True)
class ModelReply:
    text: str
    calls: tuple[ToolCall, ...]
    finish: FinishReason
    replay: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AnswerStep:
    truncated: bool = False  # the text was cut by the output limit
    silent: bool = False  # tools ran and nothing was said, so a closing line is added


@dataclass(frozen=True, kw_only=True)
class RunToolsStep:
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, kw_only=True)
class LostCallsStep:
    """The output limit cut the reply inside its calls, so none of them runs."""

    lost: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HaltStep:
    """The reply cannot be used; its calls get results without being run."""

    code: FailureCode | Literal["round_limit"]
    calls: tuple[ToolCall, ...] = ()


NextStep = AnswerStep | RunToolsStep | LostCallsStep | HaltStep
UNUSABLE_FINISH_REASONS: dict[FinishReason, FailureCode] = {
    "refused": "refused",
    "overflow": "context_overflow",
}


def choose_next_step(reply: ModelReply, state: RoundState) -> NextStep:
    if (code := UNUSABLE_FINISH_REASONS.get(reply.finish)) is not None:
        return HaltStep(code=code)
    if reply.calls:
        return _choose_step_after_calls(reply, state)
    if reply.text:
        return AnswerStep(truncated=reply.finish == "length")
    if state.ran_tools or state.continues_text:
        return AnswerStep(silent=state.ran_tools and not state.continues_text)
    return HaltStep(code="no_response")


def _choose_step_after_calls(reply: ModelReply, state: RoundState) -> NextStep:
    if reply.finish == "length":
        return LostCallsStep(lost=tuple(call.tool for call in reply.calls))
    if state.last_round:
        return HaltStep(code="round_limit", calls=reply.calls)
    return RunToolsStep(calls=reply.calls)


# --- One attempt ---


@dataclass(frozen=True, kw_only=True)
class InterruptedText:
    """A text row that was interrupted; the first text of the next reply continues it."""

    row_id: UUID
    length: int
    block_id: str = ""  # of the block that is still open in this run


@dataclass(kw_only=True)
class ModelStep:
    """One attempt of a round, as clients see it."""

    round: int
    id: str = field(default_factory=lambda: str(uuid4()))
    is_over: bool = False
    call: int = 0

    def start_event(self) -> StepStarted:
        return StepStarted(step_id=self.id, round=self.round, call=self.call)

    def finish_event(self, reason: str) -> StepFinished:
        return StepFinished(step_id=self.id, round=self.round, finish_reason=reason)

    async def finish(self, output: OutputSink, reason: str) -> None:
        await output.emit(self.finish_event(reason))
        self.is_over = True


@dataclass
class StreamBlock:
    """Text or reasoning while it streams into its row."""

    kind: Literal["text", "reasoning"]
    row_id: UUID = field(default_factory=uuid4)
    block_id: str = field(default_factory=lambda: str(uuid4()))
    length: int = 0  # of the row, in characters
    parts: list[str] = field(default_factory=list)
    synthetic: bool = False
    row_name: str = field(init=False)  # computed once, because every delta carries it

    def __post_init__(self) -> None:
        self.row_name = str(self.row_id)

    @classmethod
    def from_interrupted(cls, interrupted: InterruptedText) -> StreamBlock:
        resumed = cls("text", row_id=interrupted.row_id, length=interrupted.length)
        resumed.block_id = interrupted.block_id or resumed.block_id
        return resumed

    def to_interrupted(self) -> InterruptedText:
        return InterruptedText(row_id=self.row_id, length=self.length, block_id=self.block_id)

    def start_event(self) -> TextStarted | ReasoningStarted:
        if self.kind == "reasoning":
            return ReasoningStarted(block_id=self.block_id, row_id=self.row_name)
        return TextStarted(block_id=self.block_id, row_id=self.row_name, synthetic=self.synthetic)

    def extend(self, delta: str) -> TextExtended | ReasoningExtended:
        cls = TextExtended if self.kind == "text" else ReasoningExtended
        event = cls(block_id=self.block_id, row_id=self.row_name, offset=self.length, delta=delta)
        self.length += len(delta)
        self.parts.append(delta)
        return event

    def end_event(self) -> TextEnded | ReasoningEnded:
        cls = TextEnded if self.kind == "text" else ReasoningEnded
        return cls(block_id=self.block_id, row_id=self.row_name)


class ModelAttempt:
    """Stream one request. Afterwards either `reply` or `failure` is set."""

    def __init__(
        self,
        request: ModelRequest,
        *,
        output: OutputSink,
        step: ModelStep,
        meter: ModelCallMeter,
        taken_ids: Collection[str] = (),
        continuing: InterruptedText | None = None,
        may_be_cut: bool = False,
        goes_on: bool = False,
    ) -> None:
        """Set up one attempt.

        `may_be_cut` keeps a text open when the output limit cuts it; `goes_on` says that this attempt
        continues such a text.
        """
        self.step = step
        self.meter = meter
        self._output = output
        self.cut_text: InterruptedText | None = None  # the text that stayed open
        self.reply: ModelReply | None = None
        self.failure: ProviderFailure | None = None
        self.block: StreamBlock | None = None  # the open block
        self.blocks: list[StreamBlock] = []
        self.resumed_block: StreamBlock | None = None  # the interrupted row, once text is added to it
        self.request = request
        self._known = frozenset(tool.name for tool in request.tools)
        self._assembler = ToolCallAssembler(taken_ids)
        self._continuing = continuing
        self._may_be_cut = may_be_cut
        self._goes_on = goes_on
        self._leading = ""  # white space that opens no block until text follows
        self._replay: list[str] = []
        self._finished: ReplyFinished | None = None

    @property
    def has_visible_output(self) -> bool:
        return any(block.kind == "text" for block in self.own_blocks) or bool(self.proposed_calls())

    @property
    def own_blocks(self) -> list[StreamBlock]:
        return [block for block in self.blocks if block is not self.resumed_block]

    def proposed_calls(self) -> list[ToolCall]:
        return self._assembler.list_proposed()

    async def stream(self, provider_for: Callable[[CatalogueEntry], Provider]) -> None:
        """Send the request, and emit what arrives."""
        if not self._goes_on:
            await self._output.emit(self.step.start_event())
        await self._output.emit(self.meter.start())
        try:
            provider = provider_for(self.request.entry)
            async with aclosing_iterator(provider.stream(self.request)) as items:
                async for item in items:
                    await self._receive(item)
            self.reply = self._complete()
        except ProviderFailure as failure:
            self.failure = failure
        await self._end_stream()
        await self._output.emit(self._finish_meter())
        self.meter.is_recorded = True

    async def add_synthetic_text(self, text: str) -> None:
        self.block = StreamBlock("text", synthetic=True)
        self.blocks.append(self.block)
        await self._output.emit(self.block.start_event())
        await self._output.emit(self.block.extend(text))
        await self._close_block()

    async def emit_replay(self, reply: ModelReply, calls: Mapping[str, UUID]) -> None:
        """Attach opaque reasoning data to the step's first row, where a takeover finds it for the tool loop."""
        rows = [block.row_id for block in self.own_blocks] or list(calls.values())
        for data in reply.replay:
            await self._output.emit(ReasoningReplayAdded(row_id=rows[0], data=data))

    def _finish_meter(self) -> LoopOutput:
        failure = self.failure
        ending = failure.code if failure else _classify_reply(self.reply)
        unusable = failure is not None or ending in UNUSABLE_FINISH_REASONS.values()
        return self.meter.finish(
            aborted=failure is not None,
            refused=failure is not None and failure.refused_before_work,
            response_id=self.response_id or (failure.request_id if failure else ""),
            ending=ending,
            partial=unusable and self.has_visible_output,
        )

    @property
    def response_id(self) -> str:
        return self._finished.response_id if self._finished else ""

    # --- Stream items ---

    async def _receive(self, item: StreamItem) -> None:
        match item:
            case TextDelta():
                await self._extend("text", self._visible(item.text))
            case ReasoningDelta():
                await self._extend_reasoning(item.text)
            case CallFragment():
                await self._add_fragment(item)
            case ReasoningReplay():
                self._replay.append(item.data)
            case UsageReported():
                self.meter.record_usage(item)
            case ResponseIdReceived():
                self.meter.name = item.response_id
            case ReplyFinished():
                self._finished = item
            case unreachable:
                assert_never(unreachable)

    def _visible(self, delta: str) -> str:
        """Hold back leading blank lines, which models put in front of calls."""
        if self._continuing or (self.block is not None and self.block.kind == "text"):
            return delta
        text = (self._leading + delta).lstrip("\r\n")
        self._leading = "" if text.strip() else text
        return text if not self._leading else ""

    async def _extend_reasoning(self, delta: str) -> None:
        """Drop reasoning in the middle of a continued text: blocks never overlap."""
        if self._goes_on and self._continuing is not None:
            self.meter.count_characters(len(delta))
        else:
            await self._extend("reasoning", delta)

    async def _extend(self, kind: Literal["text", "reasoning"], delta: str) -> None:
        delta = make_storable(delta)
        if not delta:
            return
        self.meter.count_characters(len(delta))
        if self.block is None or self.block.kind != kind:
            await self._close_block()
            block = await self._open_block(kind)
        else:
            block = self.block
        await self._output.emit(block.extend(delta))

    async def _open_block(self, kind: Literal["text", "reasoning"]) -> StreamBlock:
        if kind == "text" and self._continuing is not None:
            block = self._resume(self._continuing)
        else:
            block = StreamBlock(kind)
        self.block = block  # open from now on, even if a cancellation comes before its first text
        self.blocks.append(block)
        if block is not self.resumed_block:
            await self._output.emit(block.start_event())
        return block

    def _resume(self, continuing: InterruptedText) -> StreamBlock:
        self._continuing = None
        self.resumed_block = StreamBlock.from_interrupted(continuing)
        return self.resumed_block

    async def _close_block(self) -> None:
        if self.block is not None:
            await self._output.emit(self.block.end_event())
            self.block = None
            self._leading = ""

    async def _add_fragment(self, fragment: CallFragment) -> None:
        self.meter.count_characters(len(fragment.name) + len(fragment.arguments))
        await self._close_block()
        self._assembler.add_fragment(fragment)
        for call in self._assembler.take_newly_named(self._known):
            await self._output.emit(ToolProposed(call_id=call.call_id, tool=call.tool))

    # --- End of the stream ---

    def _complete(self) -> ModelReply:
        if self._finished is None:
            sent_nothing = self.meter.first_at is None
            raise ProviderFailure(
                "no_response" if sent_nothing else "malformed_stream",
                details="the stream ended without a final event",
            )
        calls = self._assembler.complete()
        if not all(call.tool for call in calls):
            raise ProviderFailure("malformed_stream", details="a tool call has no name")
        return ModelReply(
            text=join_text(*("".join(block.parts) for block in self.blocks if block.kind == "text")),
            calls=calls,
            finish=self._finished.reason,
            replay=tuple(self._replay),
        )

    def join_with(self, beginning: ModelReply) -> ModelReply:
        """Join this attempt to the reply it continues. If this one failed, the text ends where it failed."""
        rest = "".join(self.resumed_block.parts) if self.resumed_block else ""
        further = ("".join(block.parts) for block in self.own_blocks if block.kind == "text")
        whole = self.reply or replace(beginning, replay=())
        text = join_text(beginning.text + rest, *further)
        return replace(whole, text=text, replay=beginning.replay + whole.replay)

    async def _end_stream(self) -> None:
        block = self.block
        if self._may_be_cut and block is not None and block.kind == "text" and _is_cut_by_length(self.reply):
            self.cut_text, self.block = block.to_interrupted(), None
            return
        await self._close_block()
        if self.reply is None:
            return
        if self._continuing is not None:  # nothing was added: the interrupted row ends as it is
            await self._output.emit(self._resume(self._continuing).end_event())
        for call in self._assembler.take_unproposed():
            await self._output.emit(ToolProposed(call_id=call.call_id, tool=call.tool))


def _classify_reply(reply: ModelReply | None) -> ModelCallEnding:
    if reply is None:
        return ""
    if (code := UNUSABLE_FINISH_REASONS.get(reply.finish)) is not None:
        return code
    if reply.calls:
        return "called"
    return "cut" if _is_cut_by_length(reply) else "answered"


def _is_cut_by_length(reply: ModelReply | None) -> bool:
    return reply is not None and reply.finish == "length" and not reply.calls
