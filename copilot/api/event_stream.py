"""REST view that streams a session's events (SSE): a snapshot or the events after a cursor, then live events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from django.http import StreamingHttpResponse
from pydantic import Field
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from config.core.api.errors import OUTAGE_EXCEPTIONS
from config.core.api.parsing import QueryParams, parse_query
from config.core.api.schema import LAST_EVENT_ID_HEADER
from config.core.api.views import document_operation
from config.core.db import run_in_thread
from config.core.errors import NotFound
from copilot.api.base import StreamApiView
from copilot.chat import selectors as chat_selectors
from copilot.realtime import events
from copilot.realtime.connections import OpenConnection
from copilot.realtime.event_log import LogEntry, check_cursor
from copilot.realtime.fanout import CursorLost, EventFeed, FeedOverflowed, FeedRevoked, open_session_feed

KEEP_ALIVE_SECONDS = 15.0  # proxies cut silent connections; the session is also checked this often
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
    prefix = b"retry: %d\n\n" % RETRY_MILLISECONDS
    snapshot = await _build_snapshot_entry(reader) if cursor is None else None
    while True:
        try:
            start = snapshot.cursor if snapshot else cursor
            async with open_session_feed(reader.session_id, start, connection=reader.connection) as feed:
                yield prefix + (encode_frame(snapshot) if snapshot else b"")
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
