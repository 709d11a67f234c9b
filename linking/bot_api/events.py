"""Count the streams that a bot's key has open, and end them when it is revoked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from django.conf import settings
from django.core.cache import caches
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from pydantic import Field
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request

from config.core import db
from config.core.api.views import document_operation, respond_json
from config.core.errors import ServiceUnavailable
from copilot.chat import turn_details
from copilot.realtime import connections, event_log, fanout
from copilot.realtime.connections import OpenConnection
from copilot.realtime.events import ENDING_KINDS
from linking.api.parsing import QueryParams, parse_query
from linking.bot_api.serializers import to_bot_account
from linking.bot_api.views import AsyncBotAPIView
from linking.bot_api.visibility import EventVisibility, build_visible_snapshot
from linking.errors import BotUnauthenticated, RateLimited
from linking.event_projection import ProjectedEvent
from linking.inbound import access
from linking.links import bot_keys
from linking.models import BotKey

STREAM_WINDOW_SECONDS = (
    15  # every open stream is counted once in each, so that one whose process died is forgotten
)


@dataclass(frozen=True, slots=True)
class BotCredential:
    key_id: UUID


def find_revoked_credentials(credentials: Sequence[BotCredential]) -> list[BotCredential]:
    """One statement for all keys that have a stream open in this process."""
    standing = bot_keys.filter_valid_keys([one.key_id for one in credentials])
    return [one for one in credentials if one.key_id not in standing]


connections.register_revocation_check(BotCredential, find_revoked_credentials)


class StreamSlot:
    """A stream's place among those of its key; its `connection` ends with the key."""

    def __init__(self, key: BotKey) -> None:
        self.connection = connections.OpenConnection(BotCredential(key.pk))
        self._prefix = key.prefix
        self._counted_keys: list[str] = []  # what to take back when it ends in order

    def acquire(self) -> None:
        """Refused when the key has as many as it may have."""
        number = int(time.time() // STREAM_WINDOW_SECONDS)
        try:
            before = int(caches["shared"].get(self._cache_key("all", number - 1)) or 0)
            self._increment("all", number)
            opened = self._increment("opened", number)
        except ServiceUnavailable:
            return
        if before + opened > settings.BOT_KEY_STREAMS:
            self.release()
            raise RateLimited(retry_after_seconds=STREAM_WINDOW_SECONDS)

    def renew(self) -> None:
        """Be counted in the window that began meanwhile."""
        try:
            self._counted_keys.clear()
            self._increment("all", int(time.time() // STREAM_WINDOW_SECONDS))
        except ServiceUnavailable:
            return  # who cannot be counted is not sent away

    def release(self) -> None:
        self.connection.close()
        try:
            while self._counted_keys:
                caches["shared"].incr(self._counted_keys.pop(), -1)
        except (ServiceUnavailable, ValueError):
            return  # its window is gone, and the count with it

    def _increment(self, what: str, number: int) -> int:
        name = self._cache_key(what, number)
        added = caches["shared"].add(name, 1, 4 * STREAM_WINDOW_SECONDS)
        self._counted_keys.append(name)
        return 1 if added else int(caches["shared"].incr(name))

    def _cache_key(self, what: str, number: int) -> str:
        return f"streams:{what}:{self._prefix}:{number}"


# MERGED bot_api.reading: Bots read events: a stream from a cursor, or a long poll; both end with the turn they follow (L13).

KEEP_ALIVE_SECONDS = 15.0
CLOSED_FRAME = b"event: closed\ndata: {}\n\n"
MAX_SESSION_STREAM_SECONDS = 600.0  # a client comes back with its cursor
MAX_POLL_WAIT_SECONDS = 25
MAX_POLL_EVENTS = 500
TURN_RECHECK_SECONDS = (
    60.0  # an ending comes by the log; should it have been lost with Redis, the rows know it
)
ENDING_GRACE_SECONDS = 2.0  # a row says that a turn is over a moment before its ending is in the log
LAST_EVENT_ID_HEADER = OpenApiParameter(
    "Last-Event-ID",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The cursor of the last event received; goes before `cursor`.",
)


class EventsQuery(QueryParams):
    cursor: Annotated[str, Field(max_length=64)] | None = None
    format: Literal["sse", "json"] = "sse"
    wait: Annotated[float, Field(ge=0, le=MAX_POLL_WAIT_SECONDS, allow_inf_nan=False)] = 0.0


@dataclass(frozen=True, kw_only=True)
class EventsPage:
    """Ask again with `cursor`; `ended`: the turn is over and told to its end."""

    events: list[dict[str, Any]]
    cursor: str
    ended: bool


class EventStreamRenderer(BaseRenderer):
    """For content negotiation alone."""

    media_type = "text/event-stream"
    format = "sse"


class _EventsView(AsyncBotAPIView):
    renderer_classes = [EventStreamRenderer, JSONRenderer]
    scope = "turns:read"

    async def respond_with_events(self, request: Request, sight: EventVisibility) -> HttpResponseBase:
        asked = parse_query(request, EventsQuery)
        cursor = request.headers.get("Last-Event-ID") or asked.cursor
        if cursor is not None:
            event_log.check_cursor(cursor)
        if asked.format == "json":
            return await self._respond_to_poll(sight, cursor, asked.wait)
        frames = _frames_in_slot(sight, cursor, StreamSlot(self.key))
        first = await anext(frames)  # whatever refuses the stream does so before its first byte
        response = StreamingHttpResponse(_stream_frames(first, frames), content_type="text/event-stream")
        response["X-Accel-Buffering"] = "no"
        return response

    async def _respond_to_poll(
        self, sight: EventVisibility, cursor: str | None, wait: float
    ) -> HttpResponseBase:
        connection = OpenConnection(BotCredential(self.key.pk))
        try:
            return respond_json(await _poll_events(sight, cursor, wait, connection))
        except fanout.FeedRevoked:
            raise BotUnauthenticated from None
        finally:
            connection.close()


class BotTurnEventsView(_EventsView):
    @document_operation(
        "Follow a turn (server-sent events, or a long poll with format=json)",
        answers={(200, "text/event-stream"): str, (200, "application/json"): EventsPage},
        query=EventsQuery,
        parameters=(LAST_EVENT_ID_HEADER,),
    )
    async def get(self, request: Request, turn_id: UUID) -> HttpResponseBase:  # type: ignore[override]
        bot = to_bot_account(self.key)
        seen = await db.run_in_thread(access.get_own_turn, bot, turn_id)
        return await self.respond_with_events(request, EventVisibility(bot, seen.session_id, turn_id))


class BotSessionEventsView(_EventsView):
    @document_operation(
        "Follow a session's own turns (server-sent events, or a long poll with format=json)",
        answers={(200, "text/event-stream"): str, (200, "application/json"): EventsPage},
        query=EventsQuery,
        parameters=(LAST_EVENT_ID_HEADER,),
    )
    async def get(self, request: Request, session_id: UUID) -> HttpResponseBase:  # type: ignore[override]
        bot = to_bot_account(self.key)
        await db.run_in_thread(access.get_own_conversation, bot, session_id)
        return await self.respond_with_events(request, EventVisibility(bot, session_id))


# --- a long poll -------------------------------------------------------------------------------------


async def _poll_events(
    sight: EventVisibility, cursor: str | None, wait: float, connection: OpenConnection
) -> EventsPage:
    events: list[ProjectedEvent] = []
    if cursor is None:
        page, cursor = await build_visible_snapshot(sight, reset=False)
        return _build_page(sight, [page], cursor, over=await _is_turn_over(sight))
    try:
        events, cursor = await _read_log(sight, cursor)
        if not events and wait and not await _is_turn_over(sight):
            events, cursor = await _wait_for_events(sight, cursor, wait, connection)
        over = not events and await _is_turn_over(sight)
    except (fanout.CursorLost, fanout.FeedOverflowed):
        page, cursor = await build_visible_snapshot(sight, reset=True)
        return _build_page(sight, [page], cursor, over=await _is_turn_over(sight))
    return _build_page(sight, events, cursor, over=over)


def _build_page(
    sight: EventVisibility, events: list[ProjectedEvent], cursor: str, *, over: bool
) -> EventsPage:
    ended = over or (sight.turn_id is not None and any(one["kind"] in ENDING_KINDS for one in events))
    return EventsPage(events=[{**one} for one in events], cursor=cursor, ended=ended)


async def _read_log(sight: EventVisibility, cursor: str) -> tuple[list[ProjectedEvent], str]:
    """What is in the log already, at most a page of it told; the cursor stands behind the last that was looked at."""
    events: list[ProjectedEvent] = []
    while len(events) < MAX_POLL_EVENTS and (
        entries := await fanout.read_page_after(sight.session_id, cursor)
    ):
        for entry in entries:
            cursor = entry.cursor
            if (told := await sight.project_entry(entry)) is not None:
                events.append(told)
            if len(events) == MAX_POLL_EVENTS:
                break
    return events, cursor


async def _wait_for_events(
    sight: EventVisibility, cursor: str, wait: float, connection: OpenConnection
) -> tuple[list[ProjectedEvent], str]:
    try:
        listening = fanout.open_session_feed(sight.session_id, cursor, connection=connection)
        async with asyncio.timeout(wait), listening as feed:
            async for batch in feed:
                told = [one for entry in batch if (one := await sight.project_entry(entry)) is not None]
                if told:
                    return await _read_log(sight, cursor)
    except TimeoutError:
        pass
    return [], cursor


async def _is_turn_over(sight: EventVisibility) -> bool:
    if sight.turn_id is None:
        return False
    standing = await db.run_in_thread(turn_details.get_turn_details, UUID(sight.turn_id))
    return standing is None or standing.has_ended


# --- a stream ----------------------------------------------------------------------------------------


async def _stream_frames(first: bytes, frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(frames):
            yield first
            async for frame in frames:
                yield frame
    except fanout.LOG_OUTAGE_ERRORS:
        return  # the client comes back with its cursor; there is no status left to tell it


async def _frames_in_slot(
    sight: EventVisibility, cursor: str | None, held: StreamSlot
) -> AsyncGenerator[bytes, None]:
    """With a place among its key's streams, which is given back however it ends: also before its first frame."""
    await db.run_in_thread(held.acquire)
    try:
        async with aclosing(_generate_frames(sight, cursor, held)) as frames:
            async for frame in frames:
                yield frame
    finally:
        leaving = asyncio.ensure_future(db.run_in_thread(held.release))
        _releasing_slots.add(leaving)
        leaving.add_done_callback(_releasing_slots.discard)
        # Who is refused finds the place free; who is cancelled gives it back all the same.
        await asyncio.shield(leaving)


_releasing_slots: set[asyncio.Future[None]] = set()  # the loop itself keeps no task alive


async def _generate_frames(
    sight: EventVisibility, cursor: str | None, held: StreamSlot
) -> AsyncGenerator[bytes, None]:
    """Frames until the turn is over or the time is; after a lost thread a page of its own, and on from there."""
    greeting, ends_at = b"retry: 1000\n\n", asyncio.get_running_loop().time() + MAX_SESSION_STREAM_SECONDS
    reset = False
    while True:
        if cursor is None:
            told, cursor = await build_visible_snapshot(sight, reset=reset)
            greeting += encode_sse_frame(told)
        try:
            async for entries in _read_log_pages(sight, cursor):
                cursor = entries[-1].cursor
                told_now, over = await _encode_entries(sight, entries)
                yield greeting + told_now
                greeting = b""
                if over:
                    return
            listening = fanout.open_session_feed(sight.session_id, cursor, connection=held.connection)
            async with listening as feed:
                yield greeting or b": listening\n\n"
                async for frame in _follow_feed(sight, feed, held, ends_at):
                    yield frame
                return
        except (fanout.CursorLost, fanout.FeedOverflowed):
            greeting, cursor, reset = b"", None, True
        except fanout.FeedRevoked:
            yield CLOSED_FRAME
            return


async def _read_log_pages(sight: EventVisibility, cursor: str) -> AsyncIterator[list[event_log.LogEntry]]:
    while entries := await fanout.read_page_after(sight.session_id, cursor):
        cursor = entries[-1].cursor
        yield entries


async def _encode_entries(sight: EventVisibility, entries: list[event_log.LogEntry]) -> tuple[bytes, bool]:
    """The frames of a batch, and whether the turn that is followed ended with it."""
    frames = bytearray()
    for entry in entries:
        if (told := await sight.project_entry(entry)) is None:
            continue
        frames += encode_sse_frame(told)
        if sight.turn_id is not None and entry.kind in ENDING_KINDS:
            return bytes(frames), True
    return bytes(frames), False


async def _follow_feed(
    sight: EventVisibility, feed: fanout.EventFeed, held: StreamSlot, ends_at: float
) -> AsyncIterator[bytes]:
    clock = asyncio.get_running_loop().time
    over = await _is_turn_over(sight)
    look_at = clock() + (ENDING_GRACE_SECONDS if over else KEEP_ALIVE_SECONDS)
    ask_at = clock() + TURN_RECHECK_SECONDS
    while True:
        frames, ended = await _wait_for_frames(sight, feed, look_at)
        yield frames or b": keep-alive\n\n"
        if ended:
            return
        if clock() < look_at:
            continue
        if over or (sight.turn_id is None and clock() >= ends_at):
            return
        await db.run_in_thread(held.renew)
        if clock() >= ask_at:
            over, ask_at = await _is_turn_over(sight), clock() + TURN_RECHECK_SECONDS
        look_at = clock() + (ENDING_GRACE_SECONDS if over else KEEP_ALIVE_SECONDS)


async def _wait_for_frames(
    sight: EventVisibility, feed: fanout.EventFeed, deadline: float
) -> tuple[bytes, bool]:
    """The next frames that there is anything to tell by; none when the time is up. Nothing that was taken is lost."""
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                batch = await anext(feed)
        except TimeoutError:
            return b"", False
        frames, ended = await _encode_entries(sight, batch)
        if frames:
            return frames, ended


def encode_sse_frame(told: ProjectedEvent) -> bytes:
    """JSON holds no line breaks, so one data line is enough."""
    data = msgspec.json.encode(told)
    return f"id: {told['cursor']}\nevent: {told['kind']}\ndata: ".encode() + data + b"\n\n"
