"""Serve the AI SDK's chat transport: a message in, a resumable stream of UI message parts out.

Clients name their chats themselves. A name is the id of one of the caller's sessions, or stands for a session created
for it. The session holds the history; the messages that a client sends along count only while the session is new.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
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
from config.core.json_values import parse_uuid
from copilot.ai_sdk.ui_messages import UIMessagePart, UIMessageWriter
from copilot.chat import selectors as chat_selectors
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
)
from copilot.openai_compat.models import resolve_tier
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


chat_view = build_view(POST=send_message, is_stream=True)
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
