"""Follow one turn's event log and show its progress in its chat until it ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from config.core import db
from copilot.chat import turn_details
from copilot.realtime import event_log, events, fanout
from linking.outbound import records
from linking.outbound.files import send_answer_file, send_turn_files
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
                return True  # a decision may take days; whoever resumes the turn starts the delivery again
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
