"""Follow one turn's event log and show its progress in its chat until it ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import UUID

import msgspec
from django.conf import settings
from django.urls import reverse

from config.core import db
from config.core.errors import Conflict, RequestRefused
from copilot.chat import turn_details
from copilot.files import services as files
from copilot.realtime import event_log, events, fanout
from copilot.realtime.payloads import ArtifactPayload
from linking.outbound import records
from linking.outbound.layout import TurnLayout
from linking.outbound.message_sync import DeliveryEnded, MessageSync
from linking.outbound.records import OutboundTurn
from linking.outbound.turn_view import STOPPED_TEXT, TurnView, build_cards
from linking.platforms.base import PlatformAdapter

RELOAD_SECONDS = 10.0  # without events for this long the rows are read again: Redis may have lost some
OUTAGE_RETRY_SECONDS = 1.0


class _EventHeader(msgspec.Struct):
    turn_id: str | None = None


_header_decoder = msgspec.json.Decoder(_EventHeader)


async def follow_turn(outbound_turn: OutboundTurn, adapter: PlatformAdapter) -> None:
    """Deliver a turn. Return when its answer was delivered, cannot be, or waits for a person's decision."""
    follower = _TurnFollower(outbound_turn, adapter)
    try:
        await follower.run()
    except DeliveryEnded:
        await db.run_in_thread(records.mark_delivered, outbound_turn)


class _TurnFollower:
    def __init__(self, outbound_turn: OutboundTurn, adapter: PlatformAdapter) -> None:
        self._outbound_turn = outbound_turn
        self._adapter = adapter
        self._sync = MessageSync(outbound_turn, adapter)
        self._view = TurnView()
        self._layout = TurnLayout(adapter)
        loop = asyncio.get_running_loop()
        self._clock = loop.time
        self._token_until = loop.time() + records.REPLY_TOKEN_SECONDS
        self._typing_shown_at = self._last_event_at = float("-inf")

    async def run(self) -> None:
        while True:
            try:
                cursor = await db.run_in_thread(self._load_view)
                async with fanout.open_session_feed(
                    self._outbound_turn.session_id, cursor, fanout=fanout.get_loop_fanout()
                ) as feed:
                    if await self._follow(feed):
                        return
            except (fanout.CursorLost, fanout.FeedOverflowed):
                continue
            except fanout.LOG_OUTAGE_ERRORS:
                await asyncio.sleep(OUTAGE_RETRY_SECONDS)

    def _load_view(self) -> str:
        """Build the view from the rows and return the log's cursor, which is read first so that no event is missed."""
        cursor = fanout.get_end_of_log(self._outbound_turn.session_id)
        turn = turn_details.get_turn_details(self._outbound_turn.turn_id)
        view = TurnView()
        view.load_messages(turn_details.serialize_turn_messages(self._outbound_turn.turn_id))
        if view.has_tool_calls():  # without tool calls there is nothing to decide
            for card in build_cards(turn_details.list_turn_requests(self._outbound_turn.turn_id)):
                view.add_card(card)
        if turn is None or turn.has_ended:
            view.state = "over"
            view.ending = STOPPED_TEXT if turn is not None and turn.status == "cancelled" else ""
        elif turn.status == "waiting":
            view.state = "waiting"
        elif turn.status == "running":
            view.state = "working"
        self._view = view
        self._last_event_at = self._clock()
        return cursor

    async def _follow(self, feed: fanout.EventFeed) -> bool:
        """Return True when the delivery is done, False if the rows have to be read again."""
        while True:
            in_sync = await self._sync_messages()
            if self._view.state == "over":
                await self._finish()
                return True
            if self._view.state == "waiting" and in_sync:
                return True  # a decision may take days; resuming the turn starts the delivery again
            if not await self._wait_for_changes(feed, in_sync):
                return False

    async def _wait_for_changes(self, feed: fanout.EventFeed, in_sync: bool) -> bool:
        """Wait until something changes or is due; return False after too long a silence."""
        wait = RELOAD_SECONDS if in_sync else max(self._sync.edit_interval.seconds_left(), 0.01)
        if self._shows_typing():
            wait = min(
                wait,
                max(self._typing_shown_at + self._adapter.typing_ttl_seconds * 0.8 - self._clock(), 0.01),
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while True:
                    batch = await anext(feed)
                    self._last_event_at = self._clock()
                    if self._apply_events(batch) and (in_sync or self._view.state != "working"):
                        return True
        return self._clock() - self._last_event_at < RELOAD_SECONDS

    def _apply_events(self, batch: list[event_log.LogEntry]) -> bool:
        changed = False
        for entry in batch:
            if _header_decoder.decode(entry.payload).turn_id == str(self._outbound_turn.turn_id):
                changed = self._view.apply_event(events.decode_event(entry.payload)) or changed
        return changed

    def _shows_typing(self) -> bool:
        return self._adapter.supports_typing and self._view.state in ("queued", "working")

    async def _sync_messages(self) -> bool:
        if self._clock() > self._token_until:
            self._sync.drop_reply_token()
        if (
            self._shows_typing()
            and self._clock() - self._typing_shown_at >= self._adapter.typing_ttl_seconds * 0.75
        ):
            self._typing_shown_at = self._clock()
            await self._sync.show_typing()
        pages = self._layout.build_pages(self._view)
        return await self._sync.sync_pages(pages, final=self._view.state == "over")

    async def _finish(self) -> None:
        text = self._layout.build_full_answer(self._view)
        if text is not None:
            await send_answer_file(self._sync, text)
        await send_turn_files(self._sync, self._adapter)
        await db.run_in_thread(records.mark_delivered, self._outbound_turn)


# --- Files ---

MAX_FILES = 10  # per turn; more would bury the answer
SCAN_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)  # waits while a file is still being scanned
ANSWER_FILENAME = "answer.md"


async def send_answer_file(delivery: MessageSync, text: str) -> None:
    """Send the whole answer as a file when it is too long for messages."""
    if not await delivery.send_file(ANSWER_FILENAME, ANSWER_FILENAME, text.encode()):
        await delivery.send_text_instead(
            ANSWER_FILENAME, f"*The answer can't be sent here as a file. {_web_hint(delivery.outbound_turn)}*"
        )


async def send_turn_files(delivery: MessageSync, adapter: PlatformAdapter) -> None:
    """Send the files that the turn created, each once, even if another process takes over."""
    outbound_turn = delivery.outbound_turn
    artifacts = await db.run_in_thread(turn_details.list_turn_artifacts, outbound_turn.turn_id)
    for file in artifacts[:MAX_FILES]:
        content = await _load_content(outbound_turn.owner_id, file, adapter.max_file_bytes)
        if content is None or not await delivery.send_file(file.file_id, file.name, content):
            name = file.name.replace("`", "'")
            await delivery.send_text_instead(
                file.file_id, f"*`{name}` can't be sent here.* {_web_hint(outbound_turn)}"
            )
    if len(artifacts) > MAX_FILES:
        await delivery.send_text_instead(
            "more", f"*{len(artifacts) - MAX_FILES} more files.* {_web_hint(outbound_turn)}"
        )


def _web_hint(outbound_turn: OutboundTurn) -> str:
    # Only the payer can open the session, so a server is not shown its address.
    if outbound_turn.address.scope == "server":
        return "The person who connected me can find it on the web."
    url = reverse("chat_session", args=[outbound_turn.session_id])
    return f"Find it on the web: {settings.SITE_URL}{url}"


async def _load_content(owner_id: int, file: ArtifactPayload, max_bytes: int) -> bytes | None:
    """Return None for a file that is empty, too large, quarantined or deleted."""
    if not 0 < file.size <= max_bytes:
        return None
    for pause in (*SCAN_PAUSES_SECONDS, None):
        try:
            return await db.run_in_thread(_read_file, owner_id, UUID(file.file_id))
        except Conflict:
            if pause is None:
                return None
            await asyncio.sleep(pause)
        except (RequestRefused, OSError):
            return None
    return None


def _read_file(owner_id: int, file_id: UUID) -> bytes:
    with files.open_file(files.get_file(owner_id, file_id)) as stream:
        return stream.read()
