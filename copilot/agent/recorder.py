"""Turns what the loop produces into rows first and events then (T5.3)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID, uuid4

from copilot import history, queries
from copilot.agent import prefixes
from copilot.agent.callbook import CallBook
from copilot.agent.parts import (
    Answered,
    CallMade,
    Failed,
    ModelCallEnded,
    ModelCallStarted,
    NoteMade,
    NoticeMade,
    Paused,
    Produced,
    ReplayKept,
    ResultMade,
    SummaryMade,
)
from copilot.agent.services import CHECKPOINT_CHARACTERS, OpenRow, Services
from copilot.bridge import in_thread
from copilot.errors import FenceLost
from copilot.events import (
    JSON,
    AttachmentView,
    Content,
    ContextCompacted,
    Event,
    MessageView,
    ModelHealed,
    ModelSwitched,
    NoticePosted,
    QuestionAsked,
    QuestionClosed,
    ReasoningEnded,
    ReasoningExtended,
    ReasoningStarted,
    RowKind,
    StepRetracted,
    StepStarted,
    TextEnded,
    TextExtended,
    TextStarted,
    ToolCallContent,
    ToolCalled,
    ToolFinished,
    ToolResultContent,
    ToolStateChanged,
)
from copilot.history import NewRow, Placed
from copilot.live.publisher import Outbox
from copilot.notices import NOBODY, Source
from copilot.previews import preview_arguments
from copilot.providers.base import ImagePart
from copilot.rows import storable
from copilot.turns import Claimed

REQUEST_ID_CHARACTERS = 128  # as much as the call's own row holds of it
WRITTEN_BY_A_MODEL: tuple[RowKind, ...] = ("assistant", "reasoning", "tool_call")


class Recorder:
    """The rows and events of one run of a turn."""

    def __init__(self, turn: Claimed, services: Services, outbox: Outbox, model: str) -> None:
        self.turn = turn
        self.services = services
        self.outbox = outbox
        self.model = model
        self.calls = CallBook(turn, services, self.publish)
        self.claim_lasts: asyncio.Future[bool] | None = None  # None: it does
        self.last_place = 0  # the sequence of the newest row made here
        self._open: dict[str, OpenRow] = {}
        self._begun: TextStarted | ReasoningStarted | None = None
        self._made: set[UUID] = set()  # rows of calls that stand

    # --- the loop's yield ------------------------------------------------------------------------

    def is_instant(self, produced: Produced) -> bool:
        """Only remembered or told: recording it waits for nothing, so no cancellation can cut it short."""
        if isinstance(produced, ModelCallStarted):
            return self.calls.stands(produced.number)
        return isinstance(produced, TextExtended | ReasoningExtended | StepStarted)

    async def record(self, produced: Produced) -> None:
        match produced:
            case TextExtended() | ReasoningExtended():
                self._extend(produced)
            case TextStarted():
                await self._start("assistant", produced)
            case ReasoningStarted():
                await self._start("reasoning", produced)
            case TextEnded() | ReasoningEnded():
                await self._end(produced)
            case CallMade():
                await self._call(produced)
            case ResultMade():
                await self._result(produced)
            case NoteMade():
                await self._row(produced.row_id, "note", content=produced.text)
            case NoticeMade():
                await self.notice(produced.code, produced.details, row_id=produced.row_id)
            case ReplayKept():
                await in_thread(
                    history.keep_replay, produced.row_id, self.turn.turn_id, self.turn.fence, produced.data
                )
            case SummaryMade():
                await self._summary(produced)
            case ModelCallStarted():
                self.model = produced.entry.name  # who writes the rows from here on (A7.6)
                await self.calls.begin(produced)
            case ModelCallEnded():
                self.calls.end(produced)
            case StepRetracted():
                await self._retract(produced)
            case QuestionAsked() | QuestionClosed():
                self.publish(produced)
                await self._tell_state()
            case ModelHealed() | ModelSwitched():
                healed = isinstance(produced, ModelHealed)
                prefixes.broken("healing" if healed else "model_switch", self.turn.session_id)
                self.publish(produced)
            case Answered() | Failed() | Paused():
                pass  # the turn decides how it ends
            case _:
                self.publish(produced)

    async def _tell_state(self) -> None:
        """Whether the session waits for a person, for those who watch it from afar (E1)."""
        self.publish(await in_thread(queries.seen_from_afar, self.turn.session_id))

    def publish(self, event: Event) -> None:
        self.services.publisher.publish(self.outbox, event)

    # --- streaming rows --------------------------------------------------------------------------

    def _extend(self, event: TextExtended | ReasoningExtended) -> None:
        row = self._open[event.row_id]
        row.extend(event.delta)
        self._tell_begun()
        self.publish(event)
        if row.unsaved > CHECKPOINT_CHARACTERS:
            self.services.in_background(self.services.checkpoint_row(row))

    async def _start(self, kind: RowKind, event: TextStarted | ReasoningStarted) -> None:
        row = OpenRow(
            row_id=UUID(event.row_id),
            turn_id=self.turn.turn_id,
            fence=self.turn.fence,
            kind=kind,
            block_id=event.block_id,
        )
        synthetic = isinstance(event, TextStarted) and event.synthetic
        placed = await self._row(
            row.row_id, kind, data={"synthetic": True} if synthetic else {}, streaming=True
        )
        self._open[event.row_id] = row
        self.services.open_rows.add(row)
        self._begun = replace(event, message=self._view(row.row_id, kind, placed, "", streaming=True))

    def resume(self, row_id: UUID, text: str) -> None:
        """Go on with a text row that an earlier run left streaming."""
        row = OpenRow(row_id=row_id, turn_id=self.turn.turn_id, fence=self.turn.fence, parts=[text])
        self._open[str(row_id)] = row
        self.services.open_rows.add(row)

    async def _end(self, event: TextEnded | ReasoningEnded) -> None:
        row = self._open.pop(event.row_id, None)
        if row is not None:
            await self.services.finish(row)
            self._tell_begun()
            self.publish(event)

    def _tell_begun(self) -> None:
        """A block's start waits for its first words, which are on their way: one flush tells both."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self.publish(begun)

    def tell_open_anew(self) -> None:
        """Redis may have lost what it was told last: texts that still grow are told again from their beginning."""
        for row_id, row in self._open.items():
            text = "".join(row.parts)
            if text:
                told = ReasoningExtended if row.kind == "reasoning" else TextExtended
                self.publish(told(block_id=row.block_id or row_id, row_id=row_id, offset=0, delta=text))

    def abandon(self) -> None:
        """Another worker owns the turn: nothing of ours is stored any more."""
        for row in self._open.values():
            self.services.open_rows.discard(row)
        self._open.clear()

    # --- whole rows ------------------------------------------------------------------------------

    async def _row(
        self,
        row_id: UUID,
        kind: RowKind,
        *,
        content: str = "",
        data: dict[str, JSON] | None = None,
        call_id: str | None = None,
        streaming: bool = False,
    ) -> Placed:
        await self._claimed()
        placed = await self.services.append(
            NewRow(
                id=row_id,
                turn_id=self.turn.turn_id,
                fence=self.turn.fence,
                kind=kind,
                content=content,
                data=data or {},
                call_id=call_id,
                model=self.model if kind in WRITTEN_BY_A_MODEL else "",
                streaming=streaming,
            )
        )
        if placed is None:
            raise FenceLost(f"turn {self.turn.turn_id} is not held under fence {self.turn.fence}")
        self.last_place = placed.sequence
        return placed

    async def _claimed(self) -> None:
        """Nothing is written under a claim that the database may have lost: the turn may be another's by now."""
        if self.claim_lasts is not None:
            if not await asyncio.shield(self.claim_lasts):
                raise FenceLost(f"the claim of turn {self.turn.turn_id} may be lost")
            self.claim_lasts = None

    async def _call(self, made: CallMade) -> None:
        call = made.call
        if made.row_id in self._made:
            return  # an interruption came between the row and the loop's knowing of it
        data: dict[str, JSON] = {"tool": call.tool, "arguments": call.arguments or {}}
        if call.arguments is None:
            data["raw"] = call.raw_arguments
        placed = await self._row(made.row_id, "tool_call", data=data, call_id=call.call_id)
        self._made.add(made.row_id)
        preview = preview_arguments(call.arguments or {})
        content = ToolCallContent(call_id=call.call_id, tool=call.tool, arguments=preview)
        self.publish(
            ToolCalled(
                call_id=call.call_id,
                tool=call.tool,
                row_id=str(made.row_id),
                arguments=preview,
                message=self._view(made.row_id, "tool_call", placed, content),
            )
        )

    async def _result(self, made: ResultMade) -> None:
        outcome = made.outcome
        data: dict[str, JSON] = {
            "tool": outcome.tool,
            "success": outcome.success,
            "preview": outcome.preview,
            "duration_ms": outcome.duration_ms,
            "truncated": outcome.truncated,
            "file_id": outcome.file_id,
            "session_id": outcome.session_id,
        }
        if outcome.cancelled:
            data["cancelled"] = True
        if outcome.digest:
            data["digest"] = outcome.digest
        if outcome.sources:
            data["sources"] = list(outcome.sources)
        pictures = [_attachment(image) for image in outcome.media if image.file_id]
        placed = await self.services.append(
            NewRow(
                id=made.row_id,
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
            return  # a second result for one call leaves no row and no event (A9.8)
        content = ToolResultContent(
            call_id=outcome.call_id,
            tool=outcome.tool,
            success=outcome.success,
            preview=outcome.preview,
            duration_ms=outcome.duration_ms,
            truncated=outcome.truncated,
            file_id=outcome.file_id,
            session_id=outcome.session_id,
            cancelled=outcome.cancelled,
        )
        if outcome.cancelled:
            self.publish(ToolStateChanged(call_id=outcome.call_id, state="cancelled"))
        self.publish(
            ToolFinished(
                call_id=outcome.call_id,
                row_id=str(made.row_id),
                success=outcome.success,
                duration_ms=outcome.duration_ms,
                preview=outcome.preview,
                truncated=outcome.truncated,
                link=f"/api/v1/files/{outcome.file_id}/download" if outcome.file_id else None,
                message=replace(
                    self._view(made.row_id, "tool_result", placed, content), attachments=pictures
                ),
            )
        )

    async def _summary(self, made: SummaryMade) -> None:
        """The divider in the transcript, which itself stays whole (A17.3)."""
        data: dict[str, JSON] = {"anchor": made.anchor, "kept": list(made.kept)}
        placed = await self._row(made.row_id, "summary", content=made.text, data=data)
        prefixes.broken("compaction", self.turn.session_id)
        self.publish(
            ContextCompacted(
                tokens_before=made.tokens_before,
                tokens_after=made.tokens_after,
                window=made.window,
                row_id=str(made.row_id),
                message=self._view(made.row_id, "summary", placed, made.text),
            )
        )

    async def notice(
        self, code: str, details: str = "", *, source: Source = NOBODY, row_id: UUID | None = None
    ) -> UUID:
        row_id = row_id or uuid4()
        data: dict[str, JSON] = {"code": code, "details": details}
        if source != NOBODY:
            source = replace(source, request_id=storable(source.request_id)[:REQUEST_ID_CHARACTERS])
            data |= {"provider": source.provider, "model": source.model, "request_id": source.request_id}
        placed = await self._row(row_id, "notice", data=data)
        content = queries.notice_content(code, details, source)
        self.publish(
            NoticePosted(
                row_id=str(row_id),
                code=code,
                label=content.label,
                hint=content.hint,
                action=content.action,
                details=details,
                message=self._view(row_id, "notice", placed, content),
            )
        )
        return row_id

    async def _retract(self, event: StepRetracted) -> None:
        self._tell_begun()
        for row_id in event.row_ids:
            if (row := self._open.pop(row_id, None)) is not None:
                self.services.open_rows.discard(row)
        rows = [UUID(row_id) for row_id in event.row_ids]
        await in_thread(history.retract, self.turn.turn_id, self.turn.fence, rows)
        self.publish(event)

    def _view(
        self, row_id: UUID, kind: RowKind, placed: Placed, content: Content, *, streaming: bool = False
    ) -> MessageView:
        return MessageView(
            id=str(row_id),
            sequence=placed.sequence,
            turn_id=str(self.turn.turn_id),
            kind=kind,
            role=kind if kind == "notice" or kind == "summary" else "assistant",
            content=content,
            author="",
            attachments=[],
            branch=0,
            created_at=queries.instant(placed.created_at),
            streaming=streaming,
            model=self.model if kind in WRITTEN_BY_A_MODEL else "",
        )


def _attachment(image: ImagePart) -> AttachmentView:
    return AttachmentView(file_id=image.file_id, name=image.name, type=image.mime, size=len(image.data))
