"""One turn carried into its chat, from wherever it stands to its ending: follow its log, show what it says (L19)."""

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

RELOAD_SECONDS = 10.0  # news can be lost with Redis; the rows cannot
OUTAGE_RETRY_SECONDS = 1.0


class _EventHeader(msgspec.Struct):
    turn_id: str | None = None


_header_decoder = msgspec.json.Decoder(_EventHeader)


async def follow_turn(errand: OutboundTurn, adapter: PlatformAdapter) -> None:
    """Returns when the answer was given, cannot be given, or waits for a person to decide."""
    carriage = _TurnFollower(errand, adapter)
    try:
        await carriage.run()
    except DeliveryEnded:
        await db.run_in_thread(records.mark_delivered, errand)


class _TurnFollower:
    def __init__(self, errand: OutboundTurn, adapter: PlatformAdapter) -> None:
        self._outbound_turn = errand
        self._adapter = adapter
        self._sync = MessageSync(errand, adapter)
        self._view = TurnView()
        self._layout = TurnLayout(adapter)
        loop = asyncio.get_running_loop()
        self._clock = loop.time
        self._token_until = loop.time() + records.REPLY_TOKEN_SECONDS
        self._typing_shown_at = self._heard_at = float("-inf")

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
        """What the rows say now; the log's end is read before them, so that nothing falls in between."""
        cursor = fanout.get_end_of_log(self._outbound_turn.session_id)
        standing = turn_details.get_turn_details(self._outbound_turn.turn_id)
        progress = TurnView()
        progress.load_messages(turn_details.serialize_turn_messages(self._outbound_turn.turn_id))
        if progress.has_tool_calls():  # people are asked about these alone
            for card in build_cards(turn_details.list_turn_requests(self._outbound_turn.turn_id)):
                progress.add_card(card)
        if standing is None or standing.has_ended:
            progress.standing = "over"
            progress.ending = STOPPED_TEXT if standing is not None and standing.status == "cancelled" else ""
        elif standing.status == "waiting":
            progress.standing = "waiting"
        elif standing.status == "running":
            progress.standing = "working"
        self._view = progress
        self._heard_at = self._clock()
        return cursor

    async def _follow(self, feed: fanout.EventFeed) -> bool:
        """Whether this is done; otherwise the rows are read again."""
        while True:
            shown = await self._sync_messages()
            if self._view.standing == "over":
                await self._finish()
                return True
            if self._view.standing == "waiting" and shown:
                return True  # it may take days; whoever goes on comes back here
            if not await self._wait_for_changes(feed, shown):
                return False

    async def _wait_for_changes(self, feed: fanout.EventFeed, shown: bool) -> bool:
        """Until something has changed or is due; False when nothing was heard for so long that the rows know better."""
        wait = RELOAD_SECONDS if shown else max(self._sync.edit_interval.seconds_left(), 0.01)
        if self._shows_typing():
            wait = min(
                wait,
                max(self._typing_shown_at + self._adapter.typing_ttl_seconds * 0.8 - self._clock(), 0.01),
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while True:
                    batch = await anext(feed)
                    self._heard_at = self._clock()
                    if self._apply_events(batch) and (shown or self._view.standing != "working"):
                        return True
        return self._clock() - self._heard_at < RELOAD_SECONDS

    def _apply_events(self, batch: list[event_log.LogEntry]) -> bool:
        changed = False
        for entry in batch:
            if _header_decoder.decode(entry.payload).turn_id == str(self._outbound_turn.turn_id):
                changed = self._view.apply_event(events.decode_event(entry.payload)) or changed
        return changed

    def _shows_typing(self) -> bool:
        """Also while it waits for a worker: somebody looks for the first sign of life."""
        return self._adapter.supports_typing and self._view.standing in ("queued", "working")

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
        return await self._sync.sync_pages(pages, final=self._view.standing == "over")

    async def _finish(self) -> None:
        text = self._layout.build_full_answer(self._view)
        if text is not None:
            await send_answer_file(self._sync, text)
        await send_turn_files(self._sync, self._adapter)
        await db.run_in_thread(records.mark_delivered, self._outbound_turn)
