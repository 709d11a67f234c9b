"""Views through which bots read events, as a stream from a cursor or by long polling.

The open streams of each key are counted and limited, and they end when the key is revoked.
"""

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
from config.core.api.parsing import QueryParams, parse_query
from config.core.api.views import document_operation, respond_json
from config.core.errors import ServiceUnavailable
from config.core.json_values import JSON, parse_uuid
from copilot.chat import selectors as chat_selectors
from copilot.chat import turn_details
from copilot.realtime import connections, event_log, fanout
from copilot.realtime.connections import OpenConnection
from copilot.realtime.events import ENDING_KINDS
from linking.bot_api.views import AsyncBotAPIView, to_bot_account
from linking.conversations.services import BotAccount
from linking.errors import BotUnauthenticated, RateLimited
from linking.event_projection import PROJECTIONS, EventFields, ProjectedEvent, project_event
from linking.inbound import controls
from linking.inbound.controls import is_own_turn
from linking.links import bot_keys
from linking.models import BotKey


class EventVisibility:
    """The filter of one reader. It caches which turns belong to its bot, so that a delta costs no query."""

    def __init__(self, bot: BotAccount, session_id: UUID, turn_id: UUID | None = None) -> None:
        self.session_id = session_id
        self.turn_id = str(turn_id) if turn_id else None  # None: all turns of the session
        self._bot = bot
        # Ids of the messages that came through the bot, by turn; empty for turns of others.
        self._own_messages: dict[str, set[str]] = {}

    async def project_entry(self, entry: event_log.LogEntry) -> ProjectedEvent | None:
        if entry.kind not in PROJECTIONS:
            return None
        event: EventFields = msgspec.json.decode(entry.to_json_text())
        if entry.kind == "session.snapshot":
            return project_event(await self._filter_snapshot(event))
        return project_event(event) if await self._is_visible(event) else None

    async def _is_visible(self, event: EventFields) -> bool:
        turn_id = event.get("turn_id")
        if not isinstance(turn_id, str):
            return self.turn_id is None  # an event of the whole session
        if not await self._is_own_turn(turn_id):
            return False
        message = event.get("message")
        if event["kind"] != "message.added" or not isinstance(message, dict):
            return True
        return await self._is_own_message(turn_id, str(message["id"]))

    async def _is_own_turn(self, turn_id: str) -> bool:
        if self.turn_id is not None and turn_id != self.turn_id:
            return False
        if turn_id not in self._own_messages:
            self._own_messages[turn_id] = await db.run_in_thread(self._load_own_messages, turn_id)
        return bool(self._own_messages[turn_id])

    async def _is_own_message(self, turn_id: str, message_id: str) -> bool:
        # A message from the web may have joined the turn; the bot does not see it.
        if message_id not in self._own_messages[turn_id]:
            self._own_messages[turn_id] = await db.run_in_thread(self._load_own_messages, turn_id)
        return message_id in self._own_messages[turn_id]

    def _load_own_messages(self, turn_id: str) -> set[str]:
        parsed_id = parse_uuid(turn_id)
        turn = turn_details.get_turn_details(parsed_id) if parsed_id else None
        if parsed_id is None or turn is None or not is_own_turn(self._bot, turn):
            return set()
        return turn_details.list_message_ids_by_origin(parsed_id, self._bot.platform)

    async def _filter_snapshot(self, page: EventFields) -> EventFields:
        turn = page.get("turn")
        if isinstance(turn, dict) and not await self._is_own_turn(str(turn["id"])):
            turn = None
        if isinstance(turn, dict):
            turn = {**turn, "messages": await self._filter_messages(turn["messages"])}
        return {
            **page,
            "turn": turn,
            "messages": await self._filter_messages(page["messages"]),
            "approvals": page["approvals"] if turn else [],
            "questions": page["questions"] if turn else [],
        }

    async def _filter_messages(self, rows: JSON) -> JSON:
        assert isinstance(rows, list)
        return [row for row in rows if isinstance(row, dict) and await self._is_message_visible(row)]

    async def _is_message_visible(self, row: EventFields) -> bool:
        turn_id = row.get("turn_id")
        if not isinstance(turn_id, str) or not await self._is_own_turn(turn_id):
            return False
        return row["kind"] != "user" or await self._is_own_message(turn_id, str(row["id"]))


async def build_visible_snapshot(visibility: EventVisibility, *, reset: bool) -> tuple[ProjectedEvent, str]:
    """Return the session's snapshot as this reader may see it, and the cursor to continue from."""
    page, cursor = await db.run_in_thread(chat_selectors.build_snapshot, visibility.session_id, reset=reset)
    snapshot = await visibility.project_entry(
        fanout.build_snapshot_entry(page, visibility.session_id, cursor)
    )
    assert snapshot is not None
    return snapshot, cursor


# Every open stream is counted once per window, so that a stream whose process died stops counting.
STREAM_WINDOW_SECONDS = 15
KEEP_ALIVE_SECONDS = 15.0
CLOSED_FRAME = b"event: closed\ndata: {}\n\n"
MAX_SESSION_STREAM_SECONDS = 600.0  # then the client reconnects with its cursor
MAX_POLL_WAIT_SECONDS = 25
MAX_POLL_EVENTS = 500
TURN_RECHECK_SECONDS = 60.0  # reads the turn's row in case Redis lost its ending
ENDING_GRACE_SECONDS = 2.0  # a turn's row ends a moment before the event is in the log
LAST_EVENT_ID_HEADER = OpenApiParameter(
    "Last-Event-ID",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The cursor of the last event received; takes precedence over `cursor`.",
)


# --- Limit of open streams ---


@dataclass(frozen=True, slots=True)
class BotCredential:
    key_id: UUID


def find_revoked_credentials(credentials: Sequence[BotCredential]) -> list[BotCredential]:
    valid_ids = bot_keys.filter_valid_keys([credential.key_id for credential in credentials])
    return [credential for credential in credentials if credential.key_id not in valid_ids]


connections.register_revocation_check(BotCredential, find_revoked_credentials)


class StreamSlot:
    """One of the streams that a key may have open; its `connection` ends when the key is revoked."""

    def __init__(self, key: BotKey) -> None:
        self.connection = connections.OpenConnection(BotCredential(key.pk))
        self._prefix = key.prefix
        self._counted_keys: list[str] = []  # cache keys to decrement on release

    def acquire(self) -> None:
        """Count this stream; raise RateLimited if the key has too many open."""
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
        """Count this stream in the current window."""
        try:
            self._counted_keys.clear()
            self._increment("all", int(time.time() // STREAM_WINDOW_SECONDS))
        except ServiceUnavailable:
            return  # a stream that cannot be counted stays open

    def release(self) -> None:
        self.connection.close()
        try:
            while self._counted_keys:
                caches["shared"].incr(self._counted_keys.pop(), -1)
        except (ServiceUnavailable, ValueError):
            return  # the window has expired together with its count

    def _increment(self, counter: str, number: int) -> int:
        name = self._cache_key(counter, number)
        added = caches["shared"].add(name, 1, 4 * STREAM_WINDOW_SECONDS)
        self._counted_keys.append(name)
        return 1 if added else int(caches["shared"].incr(name))

    def _cache_key(self, counter: str, number: int) -> str:
        return f"streams:{counter}:{self._prefix}:{number}"


# --- Views ---


class EventsQuery(QueryParams):
    cursor: Annotated[str, Field(max_length=64)] | None = None
    format: Literal["sse", "json"] = "sse"
    wait: Annotated[float, Field(ge=0, le=MAX_POLL_WAIT_SECONDS, allow_inf_nan=False)] = 0.0


@dataclass(frozen=True, kw_only=True)
class EventsPage:
    """A page of events. Continue with `cursor`; `ended` means that the turn is over and no events follow."""

    events: list[dict[str, Any]]
    cursor: str
    ended: bool


class EventStreamRenderer(BaseRenderer):
    """Used for content negotiation only."""

    media_type = "text/event-stream"
    format = "sse"


class _EventsView(AsyncBotAPIView):
    renderer_classes = [EventStreamRenderer, JSONRenderer]
    scope = "turns:read"

    async def respond_with_events(self, request: Request, visibility: EventVisibility) -> HttpResponseBase:
        query = parse_query(request, EventsQuery)
        cursor = request.headers.get("Last-Event-ID") or query.cursor
        if cursor is not None:
            event_log.check_cursor(cursor)
        if query.format == "json":
            return await self._respond_to_poll(visibility, cursor, query.wait)
        frames = _frames_in_slot(visibility, cursor, StreamSlot(self.key))
        first = await anext(frames)  # errors before the first frame still become an ordinary error response
        response = StreamingHttpResponse(_stream_frames(first, frames), content_type="text/event-stream")
        response["X-Accel-Buffering"] = "no"
        return response

    async def _respond_to_poll(
        self, visibility: EventVisibility, cursor: str | None, wait: float
    ) -> HttpResponseBase:
        connection = OpenConnection(BotCredential(self.key.pk))
        try:
            return respond_json(await _poll_events(visibility, cursor, wait, connection))
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
        turn = await db.run_in_thread(controls.get_own_turn, bot, turn_id)
        return await self.respond_with_events(request, EventVisibility(bot, turn.session_id, turn_id))


class BotSessionEventsView(_EventsView):
    @document_operation(
        "Follow a session's own turns (server-sent events, or a long poll with format=json)",
        answers={(200, "text/event-stream"): str, (200, "application/json"): EventsPage},
        query=EventsQuery,
        parameters=(LAST_EVENT_ID_HEADER,),
    )
    async def get(self, request: Request, session_id: UUID) -> HttpResponseBase:  # type: ignore[override]
        bot = to_bot_account(self.key)
        await db.run_in_thread(controls.get_own_conversation, bot, session_id)
        return await self.respond_with_events(request, EventVisibility(bot, session_id))


# --- Long polling ---


async def _poll_events(
    visibility: EventVisibility, cursor: str | None, wait: float, connection: OpenConnection
) -> EventsPage:
    events: list[ProjectedEvent] = []
    if cursor is None:
        page, cursor = await build_visible_snapshot(visibility, reset=False)
        return _build_page(visibility, [page], cursor, over=await _is_turn_over(visibility))
    try:
        events, cursor = await _read_log(visibility, cursor)
        if not events and wait and not await _is_turn_over(visibility):
            events, cursor = await _wait_for_events(visibility, cursor, wait, connection)
        over = not events and await _is_turn_over(visibility)
    except (fanout.CursorLost, fanout.FeedOverflowed):
        page, cursor = await build_visible_snapshot(visibility, reset=True)
        return _build_page(visibility, [page], cursor, over=await _is_turn_over(visibility))
    return _build_page(visibility, events, cursor, over=over)


def _build_page(
    visibility: EventVisibility, events: list[ProjectedEvent], cursor: str, *, over: bool
) -> EventsPage:
    ended = over or (
        visibility.turn_id is not None and any(event["kind"] in ENDING_KINDS for event in events)
    )
    return EventsPage(events=[{**event} for event in events], cursor=cursor, ended=ended)


async def _read_log(visibility: EventVisibility, cursor: str) -> tuple[list[ProjectedEvent], str]:
    """Read at most a page of visible events from the log; the cursor is that of the last entry read."""
    events: list[ProjectedEvent] = []
    while len(events) < MAX_POLL_EVENTS and (
        entries := await fanout.read_page_after(visibility.session_id, cursor)
    ):
        for entry in entries:
            cursor = entry.cursor
            if (event := await visibility.project_entry(entry)) is not None:
                events.append(event)
            if len(events) == MAX_POLL_EVENTS:
                break
    return events, cursor


async def _wait_for_events(
    visibility: EventVisibility, cursor: str, wait: float, connection: OpenConnection
) -> tuple[list[ProjectedEvent], str]:
    try:
        listening = fanout.open_session_feed(visibility.session_id, cursor, connection=connection)
        async with asyncio.timeout(wait), listening as feed:
            async for batch in feed:
                visible = [
                    event for entry in batch if (event := await visibility.project_entry(entry)) is not None
                ]
                if visible:
                    return await _read_log(visibility, cursor)
    except TimeoutError:
        pass
    return [], cursor


async def _is_turn_over(visibility: EventVisibility) -> bool:
    if visibility.turn_id is None:
        return False
    turn = await db.run_in_thread(turn_details.get_turn_details, UUID(visibility.turn_id))
    return turn is None or turn.has_ended


# --- Streaming ---


async def _stream_frames(first: bytes, frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(frames):
            yield first
            async for frame in frames:
                yield frame
    except fanout.LOG_OUTAGE_ERRORS:
        return  # the status was sent already; the client reconnects with its cursor


async def _frames_in_slot(
    visibility: EventVisibility, cursor: str | None, slot: StreamSlot
) -> AsyncGenerator[bytes, None]:
    """Generate frames while holding a stream slot, which is released however the stream ends."""
    await db.run_in_thread(slot.acquire)
    try:
        async with aclosing(_generate_frames(visibility, cursor, slot)) as frames:
            async for frame in frames:
                yield frame
    finally:
        releasing = asyncio.ensure_future(db.run_in_thread(slot.release))
        _releasing_slots.add(releasing)
        releasing.add_done_callback(_releasing_slots.discard)
        # Shielded so that the slot is released even if this stream is being cancelled.
        await asyncio.shield(releasing)


_releasing_slots: set[asyncio.Future[None]] = set()  # keeps references, because the event loop does not


async def _generate_frames(
    visibility: EventVisibility, cursor: str | None, slot: StreamSlot
) -> AsyncGenerator[bytes, None]:
    """Yield frames until the turn ends or the time is up; after a lost cursor, continue from a new snapshot."""
    greeting, ends_at = b"retry: 1000\n\n", asyncio.get_running_loop().time() + MAX_SESSION_STREAM_SECONDS
    reset = False
    while True:
        if cursor is None:
            snapshot, cursor = await build_visible_snapshot(visibility, reset=reset)
            greeting += encode_sse_frame(snapshot)
        try:
            async for entries in _read_log_pages(visibility, cursor):
                cursor = entries[-1].cursor
                frames, ended = await _encode_entries(visibility, entries)
                yield greeting + frames
                greeting = b""
                if ended:
                    return
            listening = fanout.open_session_feed(visibility.session_id, cursor, connection=slot.connection)
            async with listening as feed:
                yield greeting or b": listening\n\n"
                async for frame in _follow_feed(visibility, feed, slot, ends_at):
                    yield frame
                return
        except (fanout.CursorLost, fanout.FeedOverflowed):
            greeting, cursor, reset = b"", None, True
        except fanout.FeedRevoked:
            yield CLOSED_FRAME
            return


async def _read_log_pages(
    visibility: EventVisibility, cursor: str
) -> AsyncIterator[list[event_log.LogEntry]]:
    while entries := await fanout.read_page_after(visibility.session_id, cursor):
        cursor = entries[-1].cursor
        yield entries


async def _encode_entries(
    visibility: EventVisibility, entries: list[event_log.LogEntry]
) -> tuple[bytes, bool]:
    """Return the frames of a batch and whether the followed turn ended with it."""
    frames = bytearray()
    for entry in entries:
        if (event := await visibility.project_entry(entry)) is None:
            continue
        frames += encode_sse_frame(event)
        if visibility.turn_id is not None and entry.kind in ENDING_KINDS:
            return bytes(frames), True
    return bytes(frames), False


async def _follow_feed(
    visibility: EventVisibility, feed: fanout.EventFeed, slot: StreamSlot, ends_at: float
) -> AsyncIterator[bytes]:
    clock = asyncio.get_running_loop().time
    over = await _is_turn_over(visibility)
    wake_at = clock() + (ENDING_GRACE_SECONDS if over else KEEP_ALIVE_SECONDS)
    recheck_at = clock() + TURN_RECHECK_SECONDS
    while True:
        frames, ended = await _wait_for_frames(visibility, feed, wake_at)
        yield frames or b": keep-alive\n\n"
        if ended:
            return
        if clock() < wake_at:
            continue
        if over or (visibility.turn_id is None and clock() >= ends_at):
            return
        await db.run_in_thread(slot.renew)
        if clock() >= recheck_at:
            over, recheck_at = await _is_turn_over(visibility), clock() + TURN_RECHECK_SECONDS
        wake_at = clock() + (ENDING_GRACE_SECONDS if over else KEEP_ALIVE_SECONDS)


async def _wait_for_frames(
    visibility: EventVisibility, feed: fanout.EventFeed, deadline: float
) -> tuple[bytes, bool]:
    """Return the next visible frames, or none at the deadline. Entries that were read are never lost."""
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                batch = await anext(feed)
        except TimeoutError:
            return b"", False
        frames, ended = await _encode_entries(visibility, batch)
        if frames:
            return frames, ended


def encode_sse_frame(event: ProjectedEvent) -> bytes:
    data = msgspec.json.encode(event)  # has no line breaks, so one data line is enough
    return f"id: {event['cursor']}\nevent: {event['kind']}\ndata: ".encode() + data + b"\n\n"
