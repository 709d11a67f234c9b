"""Bots read events: a stream from a cursor, or a long poll; both end with the turn they follow (L13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from pydantic import Field
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request

from billing.rest import answer, operation
from copilot import turns
from copilot.connections import Connection
from copilot.events import ENDING_KINDS
from copilot.queries import readers
from linking import inbound
from linking.bodies import Query, query_of
from linking.bot_api.async_doors import AsyncBotDoor
from linking.bot_api.places import bot_of
from linking.bot_api.sight import Sight, snapshot
from linking.bot_api.streams import BotCredential, Held
from linking.errors import BotUnauthenticated
from linking.reduction import Told

KEEP_ALIVE_SECONDS = 15.0
CLOSED = b"event: closed\ndata: {}\n\n"
SESSION_STREAM_SECONDS = 600.0  # a client comes back with its cursor
LONGEST_WAIT_SECONDS = 25
MOST_EVENTS = 500
ASK_ROWS_SECONDS = 60.0  # an ending comes by the log; should it have been lost with Redis, the rows know it
ENDING_SECONDS = 2.0  # a row says that a turn is over a moment before its ending is in the log
LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The cursor of the last event received; goes before `cursor`.",
)


class EventsQuery(Query):
    cursor: Annotated[str, Field(max_length=64)] | None = None
    format: Literal["sse", "json"] = "sse"
    wait: Annotated[float, Field(ge=0, le=LONGEST_WAIT_SECONDS, allow_inf_nan=False)] = 0.0


@dataclass(frozen=True, kw_only=True)
class EventsPage:
    """Ask again with `cursor`; `ended`: the turn is over and told to its end."""

    events: list[dict[str, Any]]
    cursor: str
    ended: bool


class EventStream(BaseRenderer):
    """For content negotiation alone."""

    media_type = "text/event-stream"
    format = "sse"


class _Events(AsyncBotDoor):
    renderer_classes = [EventStream, JSONRenderer]
    scope = "turns:read"

    async def follow(self, request: Request, sight: Sight) -> HttpResponseBase:
        asked = query_of(request, EventsQuery)
        cursor = request.headers.get("Last-Event-ID") or asked.cursor
        if cursor is not None:
            readers.check_cursor(cursor)
        if asked.format == "json":
            return await self._poll(sight, cursor, asked.wait)
        frames = _held(sight, cursor, Held(self.key))
        first = await anext(frames)  # whatever refuses the stream does so before its first byte
        response = StreamingHttpResponse(_whole(first, frames), content_type="text/event-stream")
        response["X-Accel-Buffering"] = "no"
        return response

    async def _poll(self, sight: Sight, cursor: str | None, wait: float) -> HttpResponseBase:
        connection = Connection(BotCredential(self.key.pk))
        try:
            return answer(await _page(sight, cursor, wait, connection))
        except readers.Revoked:
            raise BotUnauthenticated from None
        finally:
            connection.close()


class BotTurnEventsView(_Events):
    @operation(
        "Follow a turn (server-sent events, or a long poll with format=json)",
        answers={(200, "text/event-stream"): str, (200, "application/json"): EventsPage},
        query=EventsQuery,
        parameters=(LAST_EVENT_ID,),
    )
    async def get(self, request: Request, turn_id: UUID) -> HttpResponseBase:  # type: ignore[override]
        bot = bot_of(self.key)
        seen = await readers.in_thread(inbound.turn_seen, bot, turn_id)
        return await self.follow(request, Sight(bot, seen.session_id, turn_id))


class BotSessionEventsView(_Events):
    @operation(
        "Follow a session's own turns (server-sent events, or a long poll with format=json)",
        answers={(200, "text/event-stream"): str, (200, "application/json"): EventsPage},
        query=EventsQuery,
        parameters=(LAST_EVENT_ID,),
    )
    async def get(self, request: Request, session_id: UUID) -> HttpResponseBase:  # type: ignore[override]
        bot = bot_of(self.key)
        await readers.in_thread(inbound.session_seen, bot, session_id)
        return await self.follow(request, Sight(bot, session_id))


# --- a long poll -------------------------------------------------------------------------------------


async def _page(sight: Sight, cursor: str | None, wait: float, connection: Connection) -> EventsPage:
    events: list[Told] = []
    if cursor is None:
        page, cursor = await snapshot(sight, reset=False)
        return _answered(sight, [page], cursor, over=await _is_over(sight))
    try:
        events, cursor = await _read(sight, cursor)
        if not events and wait and not await _is_over(sight):
            events, cursor = await _awaited(sight, cursor, wait, connection)
        over = not events and await _is_over(sight)
    except (readers.CursorLost, readers.Overflowed):
        page, cursor = await snapshot(sight, reset=True)
        return _answered(sight, [page], cursor, over=await _is_over(sight))
    return _answered(sight, events, cursor, over=over)


def _answered(sight: Sight, events: list[Told], cursor: str, *, over: bool) -> EventsPage:
    ended = over or (sight.turn_id is not None and any(one["kind"] in ENDING_KINDS for one in events))
    return EventsPage(events=[{**one} for one in events], cursor=cursor, ended=ended)


async def _read(sight: Sight, cursor: str) -> tuple[list[Told], str]:
    """What is in the log already, at most a page of it told; the cursor stands behind the last that was looked at."""
    events: list[Told] = []
    while len(events) < MOST_EVENTS and (entries := await readers.page_after(sight.session_id, cursor)):
        for entry in entries:
            cursor = entry.cursor
            if (told := await sight.told(entry)) is not None:
                events.append(told)
            if len(events) == MOST_EVENTS:
                break
    return events, cursor


async def _awaited(sight: Sight, cursor: str, wait: float, connection: Connection) -> tuple[list[Told], str]:
    try:
        listening = readers.listening(sight.session_id, cursor, connection=connection)
        async with asyncio.timeout(wait), listening as feed:
            async for batch in feed:
                told = [one for entry in batch if (one := await sight.told(entry)) is not None]
                if told:
                    return await _read(sight, cursor)
    except TimeoutError:
        pass
    return [], cursor


async def _is_over(sight: Sight) -> bool:
    if sight.turn_id is None:
        return False
    standing = await readers.in_thread(turns.standing, UUID(sight.turn_id))
    return standing is None or standing.is_over


# --- a stream ----------------------------------------------------------------------------------------


async def _whole(first: bytes, frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(frames):
            yield first
            async for frame in frames:
                yield frame
    except readers.OUTAGES:
        return  # the client comes back with its cursor; there is no status left to tell it


async def _held(sight: Sight, cursor: str | None, held: Held) -> AsyncGenerator[bytes, None]:
    """With a place among its key's streams, which is given back however it ends: also before its first frame."""
    await readers.in_thread(held.open)
    try:
        async with aclosing(_frames(sight, cursor, held)) as frames:
            async for frame in frames:
                yield frame
    finally:
        leaving = asyncio.ensure_future(readers.in_thread(held.close))
        _leaving.add(leaving)
        leaving.add_done_callback(_leaving.discard)
        # Who is refused finds the place free; who is cancelled gives it back all the same.
        await asyncio.shield(leaving)


_leaving: set[asyncio.Future[None]] = set()  # the loop itself keeps no task alive


async def _frames(sight: Sight, cursor: str | None, held: Held) -> AsyncGenerator[bytes, None]:
    """Frames until the turn is over or the time is; after a lost thread a page of its own, and on from there."""
    greeting, ends_at = b"retry: 1000\n\n", asyncio.get_running_loop().time() + SESSION_STREAM_SECONDS
    reset = False
    while True:
        if cursor is None:
            told, cursor = await snapshot(sight, reset=reset)
            greeting += frame_of(told)
        try:
            async for entries in _pages(sight, cursor):
                cursor = entries[-1].cursor
                told_now, over = await _told(sight, entries)
                yield greeting + told_now
                greeting = b""
                if over:
                    return
            listening = readers.listening(sight.session_id, cursor, connection=held.connection)
            async with listening as feed:
                yield greeting or b": listening\n\n"
                async for frame in _live(sight, feed, held, ends_at):
                    yield frame
                return
        except (readers.CursorLost, readers.Overflowed):
            greeting, cursor, reset = b"", None, True
        except readers.Revoked:
            yield CLOSED
            return


async def _pages(sight: Sight, cursor: str) -> AsyncIterator[list[readers.Entry]]:
    while entries := await readers.page_after(sight.session_id, cursor):
        cursor = entries[-1].cursor
        yield entries


async def _told(sight: Sight, entries: list[readers.Entry]) -> tuple[bytes, bool]:
    """The frames of a batch, and whether the turn that is followed ended with it."""
    frames = bytearray()
    for entry in entries:
        if (told := await sight.told(entry)) is None:
            continue
        frames += frame_of(told)
        if sight.turn_id is not None and entry.kind in ENDING_KINDS:
            return bytes(frames), True
    return bytes(frames), False


async def _live(sight: Sight, feed: readers.Feed, held: Held, ends_at: float) -> AsyncIterator[bytes]:
    clock = asyncio.get_running_loop().time
    over = await _is_over(sight)
    look_at = clock() + (ENDING_SECONDS if over else KEEP_ALIVE_SECONDS)
    ask_at = clock() + ASK_ROWS_SECONDS
    while True:
        frames, ended = await _next(sight, feed, look_at)
        yield frames or b": keep-alive\n\n"
        if ended:
            return
        if clock() < look_at:
            continue
        if over or (sight.turn_id is None and clock() >= ends_at):
            return
        await readers.in_thread(held.count_again)
        if clock() >= ask_at:
            over, ask_at = await _is_over(sight), clock() + ASK_ROWS_SECONDS
        look_at = clock() + (ENDING_SECONDS if over else KEEP_ALIVE_SECONDS)


async def _next(sight: Sight, feed: readers.Feed, deadline: float) -> tuple[bytes, bool]:
    """The next frames that there is anything to tell by; none when the time is up. Nothing that was taken is lost."""
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                batch = await anext(feed)
        except TimeoutError:
            return b"", False
        frames, ended = await _told(sight, batch)
        if frames:
            return frames, ended


def frame_of(told: Told) -> bytes:
    """JSON holds no line breaks, so one data line is enough."""
    data = msgspec.json.encode(told)
    return f"id: {told['cursor']}\nevent: {told['kind']}\ndata: ".encode() + data + b"\n\n"
