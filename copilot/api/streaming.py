"""The native event stream (SSE): a snapshot or the rest after a cursor, then everything as it happens (T8, E3)."""

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

from billing.rest import operation
from copilot import events, queries
from copilot.api.doors import StreamDoor
from copilot.api.errors import OUTAGES
from copilot.api.parsing import Query, query_of
from copilot.api.schema import LAST_EVENT_ID
from copilot.bridge import in_thread
from copilot.connections import Connection
from copilot.errors import NotFound
from copilot.live.stream import Entry, check_cursor
from copilot.live.tail import CursorLost, Feed, Overflowed
from copilot.readers import Revoked, listening

KEEP_ALIVE_SECONDS = 15.0  # proxies cut silent connections; it is also when the session is looked at again
CLOSED = b"event: closed\ndata: {}\n\n"
RETRY_MILLISECONDS = 1000  # what a browser's EventSource waits before it comes back


class StreamQuery(Query):
    cursor: Annotated[str, Field(max_length=64)] | None = None


class EventStream(BaseRenderer):
    """For content negotiation alone."""

    media_type = "text/event-stream"
    format = "sse"


@dataclass(frozen=True)
class Reader:
    """Who reads which session, over which connection."""

    user_id: int
    session_id: UUID
    connection: Connection

    def may_go_on(self) -> bool:
        """Whether the session is still there; whether the caller may still read is the connection's business."""
        try:
            queries.session_of(self.user_id, self.session_id)
        except NotFound:
            return False
        return True


class StreamView(StreamDoor):
    renderer_classes = [EventStream]

    @operation(
        "Follow a session (server-sent events)",
        answers={(200, "text/event-stream"): str},
        query=StreamQuery,
        parameters=[LAST_EVENT_ID],
    )
    async def get(  # type: ignore[override]
        self, request: Request, session_id: UUID
    ) -> StreamingHttpResponse:
        cursor = request.headers.get("Last-Event-ID") or query_of(request, StreamQuery).cursor
        if cursor is not None:
            check_cursor(cursor)
        reader = Reader(self.caller_id, session_id, self.connection)
        await in_thread(queries.session_of, reader.user_id, session_id)
        frames = _frames(reader, cursor)
        first = await anext(frames)  # whatever refuses the stream does so before its first byte
        response = StreamingHttpResponse(_whole(first, frames), content_type="text/event-stream")
        response["Cache-Control"] = "no-store"
        response["X-Accel-Buffering"] = "no"
        return response


async def _whole(first: bytes, frames: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(frames):
        yield first
        try:
            async for frame in frames:
                yield frame
        except OUTAGES:
            return  # the client comes back with its cursor; there is no status left to tell it


async def _frames(reader: Reader, cursor: str | None) -> AsyncGenerator[bytes, None]:
    """Frames for ever, the first once we listen; after a lost thread a fresh snapshot, and on from there."""
    greeting = b"retry: %d\n\n" % RETRY_MILLISECONDS
    taken = await _snapshot(reader) if cursor is None else None
    while True:
        try:
            start = taken.cursor if taken else cursor
            async with listening(reader.session_id, start, connection=reader.connection) as feed:
                yield greeting + (frame_of(taken) if taken else b"")
                async for frame in _live(feed, reader):
                    yield frame
                return
        except (CursorLost, Overflowed):
            greeting, taken = b"", await _snapshot(reader, reset=True)
        except Revoked:
            yield CLOSED
            return


async def _snapshot(reader: Reader, *, reset: bool = False) -> Entry:
    snapshot, cursor = await in_thread(queries.snapshot, reader.session_id, reset=reset)
    payload = events.encode(snapshot, session_id=str(reader.session_id)).decode()
    return Entry(cursor, snapshot.kind, payload)


async def _live(feed: Feed, reader: Reader) -> AsyncIterator[bytes]:
    """What happens, and a sign of life; ends when the reader may no longer read."""
    clock = asyncio.get_running_loop().time
    look_at = clock() + KEEP_ALIVE_SECONDS
    while True:
        try:
            async with asyncio.timeout_at(look_at):
                batch = await anext(feed)
            yield b"".join(frame_of(entry) for entry in batch)
        except TimeoutError:
            yield b": keep-alive\n\n"
        if clock() >= look_at:
            if not await in_thread(reader.may_go_on):
                yield CLOSED
                return
            look_at = clock() + KEEP_ALIVE_SECONDS


def frame_of(entry: Entry) -> bytes:
    """JSON holds no line breaks, so one data line is enough."""
    return f"id: {entry.cursor}\nevent: {entry.kind}\ndata: {entry.text()}\n\n".encode()
