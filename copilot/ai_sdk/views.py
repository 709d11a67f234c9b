"""Serve the AI SDK's chat transport: a message in, a resumable stream of UI message parts out.

Clients name their chats themselves. A name is the id of one of the caller's sessions, or stands for a session created
for it. The session holds the history; the messages that a client sends along count only while the session is new.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID, uuid5

from django.conf import settings
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from pydantic import Field

from config.core.db import run_in_thread
from config.core.errors import InvalidRequest, NotFound, RequestRefused
from config.core.json_values import JSON, parse_uuid
from copilot.chat import selectors as chat_selectors
from copilot.chat import stop
from copilot.chat.notices import NOTICES
from copilot.chat.turn_results import TurnResult, build_session_url
from copilot.exports.imports import import_history
from copilot.models import Message
from copilot.openai_compat import requests
from copilot.openai_compat.base import (
    ApiCaller,
    LenientModel,
    build_view,
    encode_frame,
    parse_body,
    render_event_stream,
    resolve_tier,
)
from copilot.openai_compat.requests import RequestMessage, TurnRequest
from copilot.openai_compat.turns import (
    AcceptedTurn,
    KeepAlive,
    LoggedEvent,
    TurnLogReader,
    TurnOrder,
    build_history_document,
    follow_log,
    run_turn,
)
from copilot.realtime import events, payloads
from copilot.realtime.event_log import LogEntry
from copilot.realtime.events import (
    ApprovalRequested,
    ArtifactAdded,
    Event,
    NoticePosted,
    QuestionAsked,
    ReasoningEnded,
    ReasoningExtended,
    StepRetracted,
    StepStarted,
    TextEnded,
    TextExtended,
    TodosChanged,
    ToolCalled,
    ToolFinished,
    ToolProposed,
    TurnCancelled,
    TurnFailed,
    TurnPaused,
    TurnSucceeded,
)
from copilot.realtime.payloads import MessagePayload, NoticeContent, ToolCallContent, ToolResultContent

UIMessagePart = dict[str, JSON]
BlockKind = Literal["text", "reasoning"]


@dataclass(frozen=True)
class _OpenUIBlock:
    block: BlockKind
    row_id: str
    part_id: str


@dataclass
class UIMessageWriter:
    """Write the parts of one message in the order of the turn's events; a repeated event adds nothing."""

    message_id: str
    site: str = ""  # the prefix of links
    link: str = ""  # the page where a person decides
    ended: bool = False
    _in_step: bool = False
    _open: _OpenUIBlock | None = None
    _sent_characters: dict[str, int] = field(default_factory=dict)  # by row
    _block_count: int = 0
    _tools: dict[str, str] = field(default_factory=dict)  #  tool→by call id→ tool
    _called_ids: set[str] = field(default_factory=set)
    _finished_ids: set[str] = field(default_factory=set)

    def begin(self) -> list[UIMessagePart]:
        return [{"type": "start", "messageId": self.message_id}]

    def convert_event(self, event: Event) -> list[UIMessagePart]:
        if self.ended:
            return []
        match event:
            case TextExtended():
                return self._extend_block("text", event.row_id, event.offset, event.delta)
            case ReasoningExtended():
                return self._extend_block("reasoning", event.row_id, event.offset, event.delta)
            case TextEnded() | ReasoningEnded():
                return self._close_block(event.row_id)
            case StepStarted():
                return [*self._end_step(), *self._ensure_step()]
            case StepRetracted():
                rows: list[JSON] = list(event.row_ids)
                return [_build_data_part("retracted", {"row_ids": rows}), *self._end_step()]
            case ToolProposed() | ToolCalled() | ToolFinished():
                return self._convert_tool_event(event)
            case TurnSucceeded() | TurnPaused() | TurnFailed() | TurnCancelled():
                return self._convert_ending(event)
            case _:
                return self._convert_other_event(event)

    def replay_rows(self, rows: Iterable[MessagePayload]) -> list[UIMessagePart]:
        return [part for row in rows for part in self._convert_row(row)]

    # --- Blocks and steps ---

    def _extend_block(self, block: BlockKind, row_id: str, offset: int, delta: str) -> list[UIMessagePart]:
        sent = self._sent_characters.get(row_id, 0)
        new_text = delta[max(0, sent - offset) :]
        if not new_text:
            return []
        self._sent_characters[row_id] = max(sent, offset + len(delta))
        parts = self._open_block(block, row_id)
        assert self._open is not None
        return [*parts, {"type": f"{block}-delta", "id": self._open.part_id, "delta": new_text}]

    def _open_block(self, block: BlockKind, row_id: str) -> list[UIMessagePart]:
        if self._open is not None and self._open.row_id == row_id and self._open.block == block:
            return []
        parts = [*self._close_block(), *self._ensure_step()]
        self._block_count += 1
        self._open = _OpenUIBlock(block, row_id, f"{block}-{self._block_count}")
        return [*parts, {"type": f"{block}-start", "id": self._open.part_id}]

    def _close_block(self, row_id: str | None = None) -> list[UIMessagePart]:
        if self._open is None or row_id not in (None, self._open.row_id):
            return []
        closed, self._open = self._open, None
        return [{"type": f"{closed.block}-end", "id": closed.part_id}]

    def _ensure_step(self) -> list[UIMessagePart]:
        if self._in_step:
            return []
        self._in_step = True
        return [{"type": "start-step"}]

    def _end_step(self) -> list[UIMessagePart]:
        parts = self._close_block()
        if self._in_step:
            self._in_step = False
            parts.append({"type": "finish-step"})
        return parts

    # --- Tools ---

    def _convert_tool_event(self, event: ToolProposed | ToolCalled | ToolFinished) -> list[UIMessagePart]:
        match event:
            case ToolProposed():
                self._tools[event.call_id] = event.tool
                return []
            case ToolCalled():
                return self._build_call_parts(event.call_id, event.tool, event.arguments)
            case ToolFinished():
                return self._build_result_parts(event.call_id, event.success, event.preview)

    def _build_call_parts(self, call_id: str, tool: str, arguments: Mapping[str, str]) -> list[UIMessagePart]:
        if call_id in self._called_ids:
            return []
        self._called_ids.add(call_id)
        call: UIMessagePart = {"toolCallId": call_id, "toolName": tool, "dynamic": True}
        return [
            *self._close_block(),
            *self._ensure_step(),
            {"type": "tool-input-start", **call},
            {"type": "tool-input-available", **call, "input": dict(arguments)},
        ]

    def _build_result_parts(self, call_id: str, success: bool, preview: str) -> list[UIMessagePart]:
        if call_id in self._finished_ids:
            return []
        self._finished_ids.add(call_id)
        parts = [*self._close_block(), *self._build_call_parts(call_id, self._tools.get(call_id, "tool"), {})]
        result: UIMessagePart = {"toolCallId": call_id, "dynamic": True}
        if success:
            return [*parts, {"type": "tool-output-available", **result, "output": preview}]
        return [*parts, {"type": "tool-output-error", **result, "errorText": preview}]

    # --- Other events and endings ---

    def _convert_other_event(self, event: Event) -> list[UIMessagePart]:
        match event:
            case ArtifactAdded():
                url = f"{self.site}/api/v1/files/{event.file_id}/download"
                return [{"type": "file", "url": url, "mediaType": event.type}]
            case NoticePosted():
                return [
                    _build_data_part("notice", {"code": event.code, "label": event.label, "hint": event.hint})
                ]
            case TodosChanged():
                items: list[JSON] = [{"text": item.text, "status": item.status} for item in event.items]
                return [_build_data_part("todos", {"items": items})]
            case ApprovalRequested():
                calls: list[JSON] = [
                    {"id": approval.id, "tool": approval.tool} for approval in event.approvals
                ]
                return [_build_data_part("approvals", {"items": calls, "link": self.link})]
            case QuestionAsked():
                question = event.question
                choices: list[JSON] = list(question.choices)
                return [
                    _build_data_part(
                        "question", {"id": question.id, "question": question.question, "choices": choices}
                    )
                ]
            case _:
                return []

    def _convert_ending(
        self, event: TurnSucceeded | TurnPaused | TurnFailed | TurnCancelled
    ) -> list[UIMessagePart]:
        match event:
            case TurnFailed():
                return self.fail(event.code)
            case TurnCancelled():
                return self.close({"type": "abort"})
            case TurnSucceeded() | TurnPaused():
                return self.close({"type": "finish"})

    def fail(self, code: str) -> list[UIMessagePart]:
        notice = NOTICES.get(code, NOTICES["unknown"])
        return self.close({"type": "error", "errorText": f"{notice.label}. {notice.hint}"})

    def close(self, last: UIMessagePart) -> list[UIMessagePart]:
        if self.ended:
            return []
        self.ended = True
        return [*self._end_step(), last]

    def _convert_row(self, row: MessagePayload) -> list[UIMessagePart]:
        match row.content:
            case ToolCallContent(call_id=call_id, tool=tool, arguments=arguments):
                return self._build_call_parts(call_id, tool, arguments)
            case ToolResultContent(call_id=call_id, success=success, preview=preview):
                return self._build_result_parts(call_id, success, preview)
            case NoticeContent(code=code, label=label, hint=hint):
                return [_build_data_part("notice", {"code": code, "label": label, "hint": hint})]
            case str() as text if row.kind in ("assistant", "reasoning"):
                block: BlockKind = "text" if row.kind == "assistant" else "reasoning"
                return [
                    *self._extend_block(block, row.id, 0, text),
                    *([] if row.streaming else self._close_block()),
                ]
            case _:
                return []


def _build_data_part(name: str, value: dict[str, JSON]) -> UIMessagePart:
    return {"type": f"data-{name}", "data": value}


RUN_ID_PREFIX = "ui-"
CHAT_NAMESPACE = UUID(
    "6f0d2c1e-93a7-4a55-8a0b-2f6f0c5b7d11"
)  # session ids are derived from chat names under it
DONE_FRAME = b"data: [DONE]\n\n"
KEEP_ALIVE_FRAME = b": keep-alive\n\n"
ChatName = Annotated[str, Field(min_length=1, max_length=200)]


class UIMessageInputPart(LenientModel):
    type: str
    text: str | None = None


class UIMessageInput(LenientModel):
    role: Literal["system", "user", "assistant"]
    parts: list[UIMessageInputPart]


class UIChatBody(LenientModel):
    id: ChatName
    messages: Annotated[list[UIMessageInput], Field(min_length=1)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    model: str | None = None


async def send_message(request: HttpRequest, caller: ApiCaller) -> HttpResponseBase:
    body = parse_body(request, UIChatBody)
    order = await run_in_thread(_build_order, caller, body)
    return await _render_ui_stream(_run_and_stream(caller, order))


async def resume_stream(request: HttpRequest, caller: ApiCaller, name: str) -> HttpResponseBase:
    """Stream the running turn from its beginning; answer 204 if there is none."""
    running = await run_in_thread(_find_running_turn, caller, name)
    if running is None:
        return HttpResponse(status=204)
    run, parts, replayed = running
    return await _render_ui_stream(_stream_frames(run, parts, replayed))


async def stop_chat(request: HttpRequest, caller: ApiCaller, name: str) -> HttpResponseBase:
    """Stop the running turn: a client that only closes its stream may want to resume it."""
    await run_in_thread(_stop_session, caller, name)
    return HttpResponse(status=204)


def _stop_session(caller: ApiCaller, name: str) -> None:
    session_id = _find_session(caller.user_id, name)
    if session_id is None:
        raise NotFound
    stop.stop_session(caller.user_id, session_id)


chat_view = build_view(POST=send_message, is_stream=True)
chat_stop_view = build_view(POST=stop_chat)
chat_stream_view = build_view(GET=resume_stream, is_stream=True)


async def _render_ui_stream(frames: AsyncGenerator[bytes, None]) -> HttpResponseBase:
    response = await render_event_stream(frames, encode_error=_encode_error_frame)
    response["x-vercel-ai-ui-message-stream"] = "v1"
    return response


def _encode_error_frame(refusal: RequestRefused) -> bytes:
    return encode_frame({"type": "error", "errorText": refusal.message}) + DONE_FRAME


# --- Requests ---


def _build_order(caller: ApiCaller, body: UIChatBody) -> TurnOrder:
    turn_request = requests.build_turn_request(
        [_convert_message(message) for message in body.messages], param="messages"
    )
    session_id = _find_session(caller.user_id, body.id) or _create_session(
        caller.user_id, body.id, turn_request
    )
    return TurnOrder(
        request=turn_request,
        tier=resolve_tier(body.model) if body.model else "",
        mode="",
        prefix=RUN_ID_PREFIX,
        session_id=session_id,
        retry_message_id=_find_last_user_message(session_id)
        if body.trigger == "regenerate-message"
        else None,
    )


def _convert_message(message: UIMessageInput) -> RequestMessage:
    """Convert the text only; the session already holds whatever else an answer consisted of."""
    if message.role == "user" and any(part.type == "file" for part in message.parts):
        raise InvalidRequest("Files are not supported here. Send text.", code="unsupported_content")
    texts = [part.text for part in message.parts if part.type == "text" and part.text]
    return RequestMessage(role=message.role, text="\n".join(texts))


def _find_session(user_id: int, name: str) -> UUID | None:
    for candidate in (parse_uuid(name), _derive_session_id(user_id, name)):
        try:
            if candidate is not None:
                return chat_selectors.get_session(user_id, candidate).pk
        except NotFound:
            continue
    return None


def _derive_session_id(user_id: int, name: str) -> UUID:
    return uuid5(CHAT_NAMESPACE, f"{user_id}:{name}")


def _create_session(user_id: int, name: str, request: TurnRequest) -> UUID:
    at, session_id = payloads.format_timestamp(datetime.now(UTC)), _derive_session_id(user_id, name)
    try:
        import_history(
            user_id,
            build_history_document(request.history, at),
            at=at,
            instructions="",
            listed=True,
            session_id=session_id,
        )
    except IntegrityError:
        chat_selectors.get_session(user_id, session_id)  # created just now by another request, or deleted
    return session_id


def _find_last_user_message(session_id: UUID) -> UUID:
    rows = Message.objects.visible().filter(session=session_id, kind=Message.Kind.USER)
    last = rows.order_by("-sequence").first()
    if last is None:
        raise InvalidRequest("There is no message to answer again.")
    return last.pk


def _find_running_turn(
    caller: ApiCaller, name: str
) -> tuple[AcceptedTurn, UIMessageWriter, list[UIMessagePart]] | None:
    session_id = _find_session(caller.user_id, name)
    if session_id is None:
        return None
    snapshot, cursor = chat_selectors.build_snapshot(session_id)
    if snapshot.turn is None or snapshot.turn.status == "waiting":
        return None
    run = AcceptedTurn(
        caller=caller,
        session_id=session_id,
        turn_id=UUID(snapshot.turn.id),
        run_id="",
        cursor=cursor,
        started=True,
        kept=True,
    )
    writer = _build_writer(run)
    return run, writer, writer.replay_rows(snapshot.turn.messages)


# --- Answers ---


class _UIPartReader(TurnLogReader[UIMessagePart]):
    def __init__(self, run: AcceptedTurn, writer: UIMessageWriter) -> None:
        super().__init__(run)
        self.writer = writer

    def convert_entry(self, entry: LogEntry, event: LoggedEvent) -> list[UIMessagePart]:
        return self.writer.convert_event(events.decode_event(entry.payload))


def _build_writer(run: AcceptedTurn) -> UIMessageWriter:
    message_id = str(run.turn_id) if run.started else run.run_id
    return UIMessageWriter(message_id, site=settings.SITE_URL, link=build_session_url(run.session_id))


async def _run_and_stream(caller: ApiCaller, order: TurnOrder) -> AsyncGenerator[bytes, None]:
    async with run_turn(caller, order) as run:
        async for frame in _stream_frames(run, _build_writer(run), []):
            yield frame


async def _stream_frames(
    run: AcceptedTurn, writer: UIMessageWriter, replayed: list[UIMessagePart]
) -> AsyncGenerator[bytes, None]:
    yield _encode_parts([*writer.begin(), *replayed])
    async for update in follow_log(_UIPartReader(run, writer)):
        yield KEEP_ALIVE_FRAME if isinstance(update, KeepAlive) else _encode_parts(update)
    if not writer.ended:  # the log lost the ending; the database has it
        yield _encode_parts(_build_ending(writer, await run_in_thread(run.get_outcome)))
    yield DONE_FRAME


def _build_ending(writer: UIMessageWriter, outcome: TurnResult) -> list[UIMessagePart]:
    match outcome.status:
        case "failed":
            return writer.fail(outcome.error.code if outcome.error else "unknown")
        case "cancelled":
            return writer.close({"type": "abort"})
        case _:
            return writer.close({"type": "finish"})


def _encode_parts(parts: list[UIMessagePart]) -> bytes:
    return b"".join(encode_frame(part) for part in parts)
