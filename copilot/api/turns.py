"""REST views for turns: read, wait, follow the events, decide on tool calls and answer questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

from django.http import HttpResponse, StreamingHttpResponse
from pydantic import Field
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from config.core.api.errors import OUTAGE_EXCEPTIONS
from config.core.api.parsing import QueryParams, RequestBody, parse_body, parse_query
from config.core.api.schema import LAST_EVENT_ID_HEADER
from config.core.api.views import document_operation, respond_json, respond_no_content
from config.core.db import run_in_thread
from config.core.errors import InvalidRequest, NotFound
from copilot.api.base import AuthenticatedApiView, StreamApiView, format_instant_or_none
from copilot.chat import approval_decisions, approvals, questions, serializers, tool_calls, turn_results
from copilot.chat import selectors as chat_selectors
from copilot.chat.commands import (
    MAX_DECISIONS,
    MAX_FEEDBACK_CHARACTERS,
    DecisionBody,
    parse_decisions,
    validate_run_id,
)
from copilot.models import Approval, Turn
from copilot.realtime import events, payloads
from copilot.realtime.connections import OpenConnection
from copilot.realtime.event_log import LogEntry, check_cursor
from copilot.realtime.fanout import CursorLost, EventFeed, FeedOverflowed, FeedRevoked, open_session_feed


class WaitQuery(QueryParams):
    timeout: Annotated[float, Field(ge=0, le=turn_results.MAX_WAIT_SECONDS, allow_inf_nan=False)] = 60.0
    run_id: Annotated[str, Field(max_length=128)] | None = None


@dataclass(frozen=True, kw_only=True)
class TurnShown:
    id: str
    session_id: str
    status: str
    origin: str
    run_ids: list[str]
    tier: str
    mode: str
    model: str
    attempts: int
    created_at: str
    started_at: str | None
    ended_at: str | None
    failure_code: str | None
    limit_code: str | None
    cancel_reason: str | None


class TurnView(AuthenticatedApiView):
    @document_operation("Read a turn", answers={200: TurnShown})
    def get(self, request: Request, turn_id: UUID) -> HttpResponse:
        return respond_json(_serialize_turn(chat_selectors.get_turn(self.caller_id, turn_id)))


class ToolCallQuery(QueryParams):
    """Characters of the output."""

    offset: Annotated[int, Field(ge=0, le=10**9)] = 0
    limit: Annotated[int, Field(ge=1, le=tool_calls.MAX_OUTPUT_PAGE_CHARACTERS)] = (
        tool_calls.OUTPUT_PAGE_CHARACTERS
    )


class ToolCallView(AuthenticatedApiView):
    @document_operation(
        "Read a tool call whole: all arguments, and the output page by page",
        answers={200: tool_calls.ToolCallDetails},
        query=ToolCallQuery,
    )
    def get(self, request: Request, turn_id: UUID, call_id: str) -> HttpResponse:
        query = parse_query(request, ToolCallQuery)
        return respond_json(
            tool_calls.get_tool_call(self.caller_id, turn_id, call_id, offset=query.offset, limit=query.limit)
        )


class WaitView(StreamApiView):
    @document_operation(
        "Wait until a turn ends; `run_id` waits for that message instead",
        answers={200: turn_results.TurnResult},
        query=WaitQuery,
    )
    async def get(self, request: Request, turn_id: UUID) -> HttpResponse:  # type: ignore[override]
        query = parse_query(request, WaitQuery)
        outcome = await turn_results.wait_for_turn(
            self.caller_id,
            turn_id,
            run_id=validate_run_id(query.run_id),
            timeout_seconds=query.timeout,
            connection=self.connection,
        )
        return respond_json(outcome)


def _serialize_turn(turn: Turn) -> TurnShown:
    return TurnShown(
        id=str(turn.id),
        session_id=str(turn.session_id),
        status=turn.status,
        origin=turn.origin,
        run_ids=list(turn.run_ids),
        tier=turn.tier or "standard",
        mode=turn.mode,
        model=turn.model,
        attempts=turn.attempts,
        created_at=payloads.format_timestamp(turn.created_at),
        started_at=format_instant_or_none(turn.started_at),
        ended_at=format_instant_or_none(turn.ended_at),
        failure_code=turn.failure_code or None,
        limit_code=turn.limit_code or None,
        cancel_reason=turn.cancel_reason or None,
    )


FeedbackText = Annotated[str, Field(max_length=MAX_FEEDBACK_CHARACTERS)]


class Decision(RequestBody):
    """Changed `arguments` go with an approval, `feedback` with a rejection."""

    decision: Literal["approve", "reject"]
    arguments: dict[str, Any] | None = None
    feedback: FeedbackText = ""


class Decisions(RequestBody):
    """All decisions count, or none. Calls that are not listed stay open."""

    decisions: Annotated[list[DecisionBody], Field(min_length=1, max_length=MAX_DECISIONS)]


@dataclass(frozen=True, kw_only=True)
class PendingApproval:
    """A tool call that waits for a decision, and where it was made."""

    approval: payloads.ApprovalPayload
    session_id: str
    session_title: str
    requested_at: str
    link: str


@dataclass(frozen=True, kw_only=True)
class PendingApprovals:
    items: list[PendingApproval]
    next_cursor: str | None


class PendingApprovalsQuery(QueryParams):
    cursor: UUID | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_DECISIONS)] = MAX_DECISIONS


class PendingApprovalsView(AuthenticatedApiView):
    @document_operation(
        "List tool calls that wait for your decision, oldest first",
        answers={200: PendingApprovals},
        query=PendingApprovalsQuery,
    )
    def get(self, request: Request) -> HttpResponse:
        query = parse_query(request, PendingApprovalsQuery)
        found = approvals.list_pending_approvals(self.caller_id, after=query.cursor, limit=query.limit + 1)
        items = [_serialize_pending(row) for row in found[: query.limit]]
        more = len(found) > query.limit
        return respond_json(
            PendingApprovals(items=items, next_cursor=items[-1].approval.id if more else None)
        )


def _serialize_pending(row: Approval) -> PendingApproval:
    [approval] = serializers.serialize_approvals([row])
    return PendingApproval(
        approval=approval,
        session_id=str(row.session_id),
        session_title=row.session.title,
        requested_at=payloads.format_timestamp(row.created_at),
        link=turn_results.build_session_url(row.session_id),
    )


class DecideView(AuthenticatedApiView):
    @document_operation(
        "Approve or reject a tool call; the first decision wins",
        answers={200: approval_decisions.DecisionResult},
        body=Decision,
    )
    def post(self, request: Request, approval_id: UUID) -> HttpResponse:
        decision = DecisionBody(approval_id=str(approval_id), **parse_body(request, Decision).model_dump())
        return respond_json(
            approval_decisions.decide_approvals(
                self.caller_id, parse_decisions([decision]), scopes=self.caller_scopes
            )
        )


class DecideManyView(AuthenticatedApiView):
    @document_operation(
        "Approve or reject several tool calls at once",
        answers={200: approval_decisions.DecisionResult},
        body=Decisions,
    )
    def post(self, request: Request) -> HttpResponse:
        body = parse_body(request, Decisions)
        return respond_json(
            approval_decisions.decide_approvals(
                self.caller_id, parse_decisions(body.decisions), scopes=self.caller_scopes
            )
        )


class Answer(RequestBody):
    """Send exactly one of the two."""

    text: str | None = None
    choice: str | None = None


class AnswerView(AuthenticatedApiView):
    @document_operation("Answer a question; the first answer wins", answers={204: None}, body=Answer)
    def post(self, request: Request, question_id: UUID) -> HttpResponse:
        body = parse_body(request, Answer)
        if (body.text is None) == (body.choice is None):
            raise InvalidRequest("Send either text or choice.")
        questions.record_answer(self.caller_id, question_id, text=body.text, choice=body.choice)
        return respond_no_content()


KEEP_ALIVE_SECONDS = 8.0  # proxies cut silent connections; the session is also checked this often
CLOSED_FRAME = b"event: closed\ndata: {}\n\n"
RETRY_MILLISECONDS = 1000  # the delay before a browser's EventSource reconnects


class StreamQuery(QueryParams):
    cursor: Annotated[str, Field(max_length=64)] | None = None


class EventStreamRenderer(BaseRenderer):
    """Take part in content negotiation only; the view renders its own frames."""

    media_type = "text/event-stream"
    format = "sse"


@dataclass(frozen=True)
class StreamSubscriber:
    user_id: int
    session_id: UUID
    connection: OpenConnection

    def can_continue(self) -> bool:
        """Tell whether the session still exists. The connection itself ends when the caller loses access."""
        try:
            chat_selectors.get_session(self.user_id, self.session_id)
        except NotFound:
            return False
        return True


class StreamView(StreamApiView):
    renderer_classes = [EventStreamRenderer]

    @document_operation(
        "Follow a session (server-sent events)",
        answers={(200, "text/event-stream"): str},
        query=StreamQuery,
        parameters=[LAST_EVENT_ID_HEADER],
    )
    async def get(  # type: ignore[override]
        self, request: Request, session_id: UUID
    ) -> StreamingHttpResponse:
        cursor = request.headers.get("Last-Event-ID") or parse_query(request, StreamQuery).cursor
        if cursor is not None:
            check_cursor(cursor)
        reader = StreamSubscriber(self.caller_id, session_id, self.connection)
        await run_in_thread(chat_selectors.get_session, reader.user_id, session_id)
        frames = _stream_frames(reader, cursor)
        first = await anext(frames)  # errors surface here, while a status code can still be sent
        response = StreamingHttpResponse(_prepend_frame(first, frames), content_type="text/event-stream")
        response["Cache-Control"] = "no-store"
        response["X-Accel-Buffering"] = "no"
        return response


async def _prepend_frame(first: bytes, frames: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(frames):
        yield first
        try:
            async for frame in frames:
                yield frame
        except OUTAGE_EXCEPTIONS:
            return  # the status is already sent; the client reconnects with its cursor


async def _stream_frames(reader: StreamSubscriber, cursor: str | None) -> AsyncGenerator[bytes, None]:
    """Yield frames until the client leaves; start over with a snapshot when the cursor is lost."""
    prefix = (
        b"retry: %d\n" % RETRY_MILLISECONDS
    )  # part of the first event: alone it would confuse simple readers
    snapshot = await _build_snapshot_entry(reader) if cursor is None else None
    while True:
        try:
            start = snapshot.cursor if snapshot else cursor
            async with open_session_feed(reader.session_id, start, connection=reader.connection) as feed:
                yield prefix + encode_frame(snapshot) if snapshot else b": connected\n\n"
                async for frame in _stream_feed(feed, reader):
                    yield frame
                return
        except (CursorLost, FeedOverflowed):
            prefix, snapshot = b"", await _build_snapshot_entry(reader, reset=True)
        except FeedRevoked:
            yield CLOSED_FRAME
            return


async def _build_snapshot_entry(reader: StreamSubscriber, *, reset: bool = False) -> LogEntry:
    snapshot, cursor = await run_in_thread(chat_selectors.build_snapshot, reader.session_id, reset=reset)
    payload = events.encode_event(snapshot, session_id=str(reader.session_id)).decode()
    return LogEntry(cursor, snapshot.kind, payload)


async def _stream_feed(feed: EventFeed, reader: StreamSubscriber) -> AsyncIterator[bytes]:
    """Yield events and keep-alives; end when the session is gone."""
    clock = asyncio.get_running_loop().time
    next_check = clock() + KEEP_ALIVE_SECONDS
    while True:
        try:
            async with asyncio.timeout_at(next_check):
                batch = await anext(feed)
            yield b"".join(encode_frame(entry) for entry in batch)
        except TimeoutError:
            yield b": keep-alive\n\n"
        if clock() >= next_check:
            if not await run_in_thread(reader.can_continue):
                yield CLOSED_FRAME
                return
            next_check = clock() + KEEP_ALIVE_SECONDS


def encode_frame(entry: LogEntry) -> bytes:
    """Encode one entry as an SSE frame. JSON has no line breaks, so one data line is enough."""
    return f"id: {entry.cursor}\nevent: {entry.kind}\ndata: {entry.to_json_text()}\n\n".encode()
