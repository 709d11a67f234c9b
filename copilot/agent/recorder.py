"""Store the loop's output as rows, then publish the matching events."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from uuid import UUID, uuid4

from config.core.batching import run_shielded
from config.core.db import run_in_thread
from config.core.errors import FenceLost
from config.core.json_values import JSON
from config.core.text import make_storable
from copilot.agent import system_prompt
from copilot.agent.outputs import (
    LoopOutput,
    ModelCallEnded,
    ModelCallStarted,
    NoteAdded,
    NoticeAdded,
    ReasoningReplayAdded,
    SummaryAdded,
    ToolCallAdded,
    ToolResultAdded,
)
from copilot.agent.services import CHECKPOINT_CHARACTERS, ProcessServices, StreamingRow
from copilot.agent.tool_approvals import ApprovedCalls
from copilot.agent.usage import ModelCallRecorder
from copilot.chat import messages
from copilot.chat import selectors as chat_selectors
from copilot.chat import serializers as chat_serializers
from copilot.chat.messages import NewMessage, PlacedMessage
from copilot.chat.notices import NO_SOURCE, FailureSource
from copilot.chat.turns import ClaimedTurn
from copilot.providers.base import ImagePart
from copilot.realtime import payloads
from copilot.realtime.events import (
    ContextCompacted,
    Event,
    ModelHealed,
    ModelSwitched,
    NoticePosted,
    QuestionAsked,
    QuestionClosed,
    ReasoningEnded,
    ReasoningExtended,
    ReasoningStarted,
    StepRetracted,
    StepStarted,
    TextEnded,
    TextExtended,
    TextStarted,
    ToolCalled,
    ToolFinished,
    ToolStateChanged,
)
from copilot.realtime.payloads import (
    AttachmentPayload,
    MessageContent,
    MessageKind,
    MessagePayload,
    ToolResultContent,
)
from copilot.realtime.publisher import TurnOutbox
from copilot.tools.base import ToolCallOutcome
from copilot.tools.labels import is_failed_program
from copilot.tools.results import build_call_content

MAX_REQUEST_ID_CHARACTERS = 128  # the size of the column on the call's own row
MODEL_ROW_KINDS: tuple[MessageKind, ...] = ("assistant", "reasoning", "tool_call")


class TurnRecorder:
    """Record the output of one run of a turn: `emit` is where the loop puts everything."""

    def __init__(self, turn: ClaimedTurn, services: ProcessServices, outbox: TurnOutbox) -> None:
        self.turn = turn
        self.services = services
        self.outbox = outbox
        self.model = ""  # the author of the rows that follow
        self.approved_calls = ApprovedCalls(turn)
        self.progressed_at = time.monotonic()  # when the last output arrived
        self.model_calls = ModelCallRecorder(turn, services, self.publish)
        self.claim_confirmed: asyncio.Future[bool] | None = None  # None: confirmed
        self.last_sequence = 0  # of the newest row appended here
        self._open: dict[str, StreamingRow] = {}
        self._pending_start: TextStarted | ReasoningStarted | None = None
        self._recorded_calls: set[UUID] = set()  # call rows that are stored

    # --- Output of the loop ---

    async def emit(self, part: LoopOutput) -> None:
        """Record one part. If the turn is cancelled meanwhile, finish the part first: no row without its event."""
        self.progressed_at = time.monotonic()
        if isinstance(part, TextExtended | ReasoningExtended):
            self._extend_block(part)
        elif self._is_instant(part):
            await self.record(part)
        else:
            await run_shielded(self._record_and_finish_call(part))

    async def _record_and_finish_call(self, part: LoopOutput) -> None:
        await self.record(part)
        if isinstance(part, ToolResultAdded):
            await self.approved_calls.mark_finished(part.outcome)

    def _is_instant(self, part: LoopOutput) -> bool:
        """Tell parts that are recorded without awaiting anything, so that nothing can interrupt them."""
        if isinstance(part, ModelCallStarted):
            return self.model_calls.is_recorded(part.number)
        return isinstance(part, StepStarted)

    async def record(self, output: LoopOutput) -> None:
        match output:
            case TextExtended() | ReasoningExtended():
                self._extend_block(output)
            case TextStarted():
                await self._start_block("assistant", output)
            case ReasoningStarted():
                await self._start_block("reasoning", output)
            case TextEnded() | ReasoningEnded():
                await self._end_block(output)
            case ToolCallAdded():
                await self._record_call(output)
            case ToolResultAdded():
                await self._record_result(output)
            case NoteAdded():
                await self._append_row(output.row_id, "note", content=output.text)
            case NoticeAdded():
                await self.post_notice(output.code, output.details, row_id=output.row_id)
            case ReasoningReplayAdded():
                await run_in_thread(
                    messages.append_replay_data,
                    output.row_id,
                    self.turn.turn_id,
                    self.turn.fence,
                    output.data,
                )
            case SummaryAdded():
                await self._record_summary(output)
            case ModelCallStarted():
                self.model = output.entry.name
                await self.model_calls.record_start(output)
            case ModelCallEnded():
                self.model_calls.record_end(output)
            case StepRetracted():
                await self._retract_step(output)
            case QuestionAsked() | QuestionClosed():
                self.publish(output)
                await self._publish_session_state()
            case ModelHealed() | ModelSwitched():
                healed = isinstance(output, ModelHealed)
                system_prompt.record_cache_break(
                    "healing" if healed else "model_switch", self.turn.session_id
                )
                self.publish(output)
            case _:
                self.publish(output)

    async def _publish_session_state(self) -> None:
        """Publish the session's state, so that chat lists show whether it waits for a person."""
        self.publish(await run_in_thread(chat_selectors.build_session_changed, self.turn.session_id))

    def publish(self, event: Event) -> None:
        self.services.publisher.publish(self.outbox, event)

    # --- Streaming rows ---

    def _extend_block(self, event: TextExtended | ReasoningExtended) -> None:
        row = self._open[event.row_id]
        row.extend(event.delta)
        self._publish_pending_start()
        self.publish(event)
        if row.unsaved > CHECKPOINT_CHARACTERS:
            self.services.run_in_background(self.services.checkpoint_row(row))

    async def _start_block(self, kind: MessageKind, event: TextStarted | ReasoningStarted) -> None:
        row = StreamingRow(
            row_id=UUID(event.row_id),
            turn_id=self.turn.turn_id,
            fence=self.turn.fence,
            kind=kind,
            block_id=event.block_id,
        )
        synthetic = isinstance(event, TextStarted) and event.synthetic
        placed = await self._append_row(
            row.row_id, kind, data={"synthetic": True} if synthetic else {}, streaming=True
        )
        self._open[event.row_id] = row
        self.services.open_rows.add(row)
        self._pending_start = replace(
            event, message=self._build_view(row.row_id, kind, placed, "", streaming=True)
        )

    def resume_row(self, row_id: UUID, text: str) -> None:
        row = StreamingRow(row_id=row_id, turn_id=self.turn.turn_id, fence=self.turn.fence, parts=[text])
        self._open[str(row_id)] = row
        self.services.open_rows.add(row)

    async def _end_block(self, event: TextEnded | ReasoningEnded) -> None:
        row = self._open.pop(event.row_id, None)
        if row is not None:
            await self.services.finish_row(row)
            self._publish_pending_start()
            self.publish(event)

    def _publish_pending_start(self) -> None:
        """Publish a block's start together with its first text, to save a flush."""
        if self._pending_start is not None:
            event, self._pending_start = self._pending_start, None
            self.publish(event)

    def republish_open_rows(self) -> None:
        """Publish unfinished texts again from their beginning, because Redis may have lost events."""
        for row_id, row in self._open.items():
            text = "".join(row.parts)
            if text:
                event_class = ReasoningExtended if row.kind == "reasoning" else TextExtended
                self.publish(
                    event_class(block_id=row.block_id or row_id, row_id=row_id, offset=0, delta=text)
                )

    def abandon(self) -> None:
        """Stop storing open rows, because another worker owns the turn."""
        for row in self._open.values():
            self.services.open_rows.discard(row)
        self._open.clear()

    # --- Complete rows ---

    async def _append_row(
        self,
        row_id: UUID,
        kind: MessageKind,
        *,
        content: str = "",
        data: dict[str, JSON] | None = None,
        call_id: str | None = None,
        streaming: bool = False,
    ) -> PlacedMessage:
        await self._check_claim()
        placed = await self.services.append_row(
            NewMessage(
                id=row_id,
                turn_id=self.turn.turn_id,
                fence=self.turn.fence,
                kind=kind,
                content=content,
                data=data or {},
                call_id=call_id,
                model=self.model if kind in MODEL_ROW_KINDS else "",
                streaming=streaming,
            )
        )
        if placed is None:
            raise FenceLost(f"turn {self.turn.turn_id} is not held under fence {self.turn.fence}")
        self.last_sequence = placed.sequence
        return placed

    async def _check_claim(self) -> None:
        """Wait until the claim is durable; after a failover the turn may belong to another worker."""
        if self.claim_confirmed is not None:
            if not await asyncio.shield(self.claim_confirmed):
                raise FenceLost(f"the claim of turn {self.turn.turn_id} may be lost")
            self.claim_confirmed = None

    async def _record_call(self, added: ToolCallAdded) -> None:
        call = added.call
        if added.row_id in self._recorded_calls:
            return  # interrupted between storing the row and telling the loop
        data: dict[str, JSON] = {"tool": call.tool, "arguments": call.arguments or {}}
        if call.arguments is None:
            data["raw"] = call.raw_arguments
        if added.of_client:
            data["of_client"] = True
        placed = await self._append_row(added.row_id, "tool_call", data=data, call_id=call.call_id)
        self._recorded_calls.add(added.row_id)
        content = build_call_content(call.call_id, call.tool, call.arguments or {})
        self.publish(
            ToolCalled(
                call_id=call.call_id,
                tool=call.tool,
                row_id=str(added.row_id),
                arguments=content.arguments,
                message=self._build_view(added.row_id, "tool_call", placed, content),
            )
        )

    async def _record_result(self, added: ToolResultAdded) -> None:
        outcome = added.outcome
        data: dict[str, JSON] = {
            "tool": outcome.tool,
            "success": outcome.success,
            "preview": outcome.preview,
            "duration_ms": outcome.duration_ms,
            "truncated": outcome.truncated,
            "file_id": outcome.file_id,
            "session_id": outcome.session_id,
        }
        optional: dict[str, JSON] = {
            "cancelled": outcome.cancelled,
            "digest": outcome.digest,
            "reported_turn": outcome.reported_turn_id,
            "sources": list(outcome.sources),
            "summary": outcome.summary,
        }
        data |= {name: value for name, value in optional.items() if value}
        pictures = [_build_attachment(image) for image in outcome.media if image.file_id]
        placed = await self.services.append_row(
            NewMessage(
                id=added.row_id,
                turn_id=self.turn.turn_id,
                fence=self.turn.fence,
                kind="tool_result",
                content=outcome.content,
                data=data,
                call_id=outcome.call_id,
                attachments=pictures,
            )
        )
        if placed is None:
            return  # a second result for the same call leaves no row and no event
        content = _build_result_content(outcome)
        if outcome.cancelled:
            self.publish(ToolStateChanged(call_id=outcome.call_id, state="cancelled"))
        self.publish(
            ToolFinished(
                call_id=outcome.call_id,
                row_id=str(added.row_id),
                success=outcome.success,
                duration_ms=outcome.duration_ms,
                preview=outcome.preview,
                truncated=outcome.truncated,
                link=f"/api/v1/files/{outcome.file_id}/download" if outcome.file_id else None,
                message=replace(
                    self._build_view(added.row_id, "tool_result", placed, content), attachments=pictures
                ),
            )
        )

    async def _record_summary(self, summary: SummaryAdded) -> None:
        data: dict[str, JSON] = {"anchor": summary.anchor, "kept": list(summary.kept)}
        placed = await self._append_row(summary.row_id, "summary", content=summary.text, data=data)
        system_prompt.record_cache_break("compaction", self.turn.session_id)
        self.publish(
            ContextCompacted(
                tokens_before=summary.tokens_before,
                tokens_after=summary.tokens_after,
                window=summary.window,
                row_id=str(summary.row_id),
                message=self._build_view(summary.row_id, "summary", placed, summary.text),
            )
        )

    async def post_notice(
        self, code: str, details: str = "", *, source: FailureSource = NO_SOURCE, row_id: UUID | None = None
    ) -> UUID:
        row_id = row_id or uuid4()
        data: dict[str, JSON] = {"code": code, "details": details}
        if source != NO_SOURCE:
            source = replace(source, request_id=make_storable(source.request_id)[:MAX_REQUEST_ID_CHARACTERS])
            data |= {"provider": source.provider, "model": source.model, "request_id": source.request_id}
            if source.retry_after_seconds:
                data["retry_after_seconds"] = source.retry_after_seconds
        placed = await self._append_row(row_id, "notice", data=data)
        content = chat_serializers.serialize_notice(code, details, source)
        self.publish(
            NoticePosted(
                row_id=str(row_id),
                code=code,
                label=content.label,
                hint=content.hint,
                action=content.action,
                details=details,
                message=self._build_view(row_id, "notice", placed, content),
            )
        )
        return row_id

    async def _retract_step(self, event: StepRetracted) -> None:
        self._publish_pending_start()
        for row_id in event.row_ids:
            if (row := self._open.pop(row_id, None)) is not None:
                self.services.open_rows.discard(row)
        rows = [UUID(row_id) for row_id in event.row_ids]
        await run_in_thread(messages.retract_messages, self.turn.turn_id, self.turn.fence, rows)
        self.publish(event)

    def _build_view(
        self,
        row_id: UUID,
        kind: MessageKind,
        placed: PlacedMessage,
        content: MessageContent,
        *,
        streaming: bool = False,
    ) -> MessagePayload:
        return MessagePayload(
            id=str(row_id),
            sequence=placed.sequence,
            turn_id=str(self.turn.turn_id),
            kind=kind,
            role=kind if kind == "notice" or kind == "summary" else "assistant",
            content=content,
            author="",
            attachments=[],
            branch=0,
            created_at=payloads.format_timestamp(placed.created_at),
            streaming=streaming,
            model=self.model if kind in MODEL_ROW_KINDS else "",
        )


def _build_attachment(image: ImagePart) -> AttachmentPayload:
    return AttachmentPayload(file_id=image.file_id, name=image.name, type=image.mime, size=len(image.data))


def _build_result_content(outcome: ToolCallOutcome) -> ToolResultContent:
    return ToolResultContent(
        call_id=outcome.call_id,
        tool=outcome.tool,
        success=outcome.success,
        preview=outcome.preview,
        duration_ms=outcome.duration_ms,
        truncated=outcome.truncated,
        file_id=outcome.file_id,
        session_id=outcome.session_id,
        cancelled=outcome.cancelled,
        summary=outcome.summary,
        program_failed=is_failed_program(outcome.preview),
    )
