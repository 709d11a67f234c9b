"""Follow one turn's event log and show its progress in its chat until it ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

import msgspec
import structlog
from django.conf import settings
from django.urls import reverse

from config.core import db
from config.core.errors import Conflict, RequestRefused
from copilot.chat import turn_details
from copilot.files import services as files
from copilot.realtime import event_log, events, fanout
from copilot.realtime.payloads import ArtifactPayload
from linking import metrics
from linking.conversations import reachability
from linking.conversations import services as conversations
from linking.outbound import records
from linking.outbound.layout import MessagePage, TurnLayout
from linking.outbound.records import OutboundTurn, SentPart
from linking.outbound.turn_view import STOPPED_TEXT, DecisionCard, TurnView, build_cards
from linking.platforms.base import (
    CallRefused,
    ChatUnreachable,
    FormatRefused,
    MessageButton,
    MessageGone,
    OutboundAddress,
    OutgoingMessage,
    PlatformAdapter,
    PlatformBusy,
    PlatformUnavailable,
)

log = structlog.get_logger(__name__)
T = TypeVar("T")

BACKOFF_FACTOR = 2.0
MAX_INTERVAL_SECONDS = 60.0
BACKOFF_RESET_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
RETRACTED_TEXT = "*Taken back.*"
PERMANENT_ERRORS = (CallRefused, FormatRefused, MessageGone)  # after the adapter's own fallbacks
FILE_ATTEMPTS = 4  # a large file may never get through


@dataclass
class EditInterval:
    """The time between two changes of a message: the platform's minimum, longer for a while after a refusal."""

    least_seconds: float
    clock: Callable[[], float]
    _interval: float = 0.0
    _last: float = float("-inf")
    _refused: float = float("-inf")
    _not_before: float = float("-inf")

    def seconds_left(self) -> float:
        """Return the seconds until the next change may be sent; zero or less means now."""
        now = self.clock()
        if now - self._refused >= BACKOFF_RESET_SECONDS:
            self._interval = self.least_seconds
        return max(self._last + max(self._interval, self.least_seconds), self._not_before) - now

    def record_sent(self) -> None:
        self._last = self.clock()

    def record_refusal(self, retry_after_seconds: float) -> None:
        """Wait as long as the platform demands and double the interval."""
        now = self.clock()
        self._refused = now
        self._not_before = now + retry_after_seconds
        self._interval = min(max(self._interval, self.least_seconds) * BACKOFF_FACTOR, MAX_INTERVAL_SECONDS)


class DeliveryEnded(Exception):
    """Nothing more of this turn can be sent to the chat."""


class MessageSync:
    """One turn's messages on the platform. Call `sync_pages` whenever anything changes."""

    def __init__(self, outbound_turn: OutboundTurn, adapter: PlatformAdapter) -> None:
        self.outbound_turn = outbound_turn
        self._adapter = adapter
        self._sent_parts = dict(outbound_turn.sent)
        self._buttons_by_subject: dict[str, tuple[MessageButton, ...]] = {}
        self.edit_interval = EditInterval(
            adapter.min_edit_interval_seconds[outbound_turn.address.scope], asyncio.get_running_loop().time
        )

    async def sync_pages(self, pages: Sequence[MessagePage], *, final: bool) -> bool:
        """Send and edit messages so that they match the pages; return True if the chat now shows them all.

        With `final`, retry until it does.
        """
        done = True
        for part, page in enumerate(pages, start=1):
            settled = final or part < len(pages) or page.card is not None
            done = await self._sync_part(part, page, settled=settled) and done
        if final:
            await self._retract_parts(len(pages))
        return done

    async def _retract_parts(self, last: int) -> None:
        """Blank the messages after the last page, whose text was retracted by the turn."""
        for part, sent in sorted(self._sent_parts.items()):
            if part > last and sent.message_id and not sent.card:
                await self._sync_part(part, MessagePage(RETRACTED_TEXT), settled=True)

    async def _sync_part(self, part: int, page: MessagePage, *, settled: bool) -> bool:
        content_hash = records.hash_content(page.text, with_buttons=page.card is not None)
        known = self._sent_parts.get(part)
        if known is not None and known.message_id and known.text_hash == content_hash:
            return True
        buttons = await self._create_buttons(page.card)
        message = OutgoingMessage(
            body=self._adapter.render_text(page.text),
            buttons=buttons,
            nonce=f"{self.outbound_turn.turn_id.hex[:20]}{part:05d}",
            opens=part == 1,
            passing=not settled,
        )
        if settled:
            await self._send_final(part, page, message, content_hash)
            return True
        return await self._try_once(part, page, message, content_hash)

    async def _try_once(
        self, part: int, page: MessagePage, message: OutgoingMessage, content_hash: str
    ) -> bool:
        """Send an intermediate state once; if it is too early or refused, a later state includes it anyway."""
        if self.edit_interval.seconds_left() > 0:
            return False
        try:
            await self._send_or_edit(part, page, message, content_hash, keep=False)
        except PlatformBusy as problem:
            self._count_refusal("busy")
            self.edit_interval.record_refusal(problem.retry_after_seconds)
            return False
        except PlatformUnavailable:
            self._count_refusal("away")
            self.edit_interval.record_refusal(FIRST_PAUSE_SECONDS)
            return False
        except PERMANENT_ERRORS:  # the platform may still accept the final text
            self._count_refusal("refused")
            self.edit_interval.record_refusal(FIRST_PAUSE_SECONDS)
            return False
        return True

    async def _send_final(
        self, part: int, page: MessagePage, message: OutgoingMessage, content_hash: str
    ) -> None:
        try:
            await self._retry(lambda: self._send_or_edit(part, page, message, content_hash, keep=True))
        except PERMANENT_ERRORS as problem:
            self._count_refusal("refused")
            log.warning(
                "answer_delivery_refused",
                turn_id=self.outbound_turn.turn_id,
                platform=self.outbound_turn.platform,
                error=str(problem),
            )
            raise DeliveryEnded from problem

    async def _retry(self, call: Callable[[], Awaitable[T]], tries: int | None = None) -> T:
        """Repeat the call until it succeeds. After `tries` failures raise PlatformUnavailable; None means no limit."""
        pause = FIRST_PAUSE_SECONDS
        for number in itertools.count(1):
            await asyncio.sleep(max(self.edit_interval.seconds_left(), 0.0))
            try:
                return await call()
            except PlatformBusy as problem:
                self._count_refusal("busy")
                self.edit_interval.record_refusal(problem.retry_after_seconds)
            except PlatformUnavailable as problem:
                self._count_refusal("away")
                if number == tries:
                    raise
                log.info(
                    "platform_call_retried",
                    turn_id=self.outbound_turn.turn_id,
                    platform=self.outbound_turn.platform,
                    error=str(problem),
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)
        raise AssertionError("unreachable")

    async def _send_or_edit(
        self, part: int, page: MessagePage, message: OutgoingMessage, content_hash: str, *, keep: bool
    ) -> None:
        """Send or edit one part. Its row is written for new messages and, with `keep`, for final edits."""
        known = self._sent_parts.get(part)
        try:
            if known is not None and known.message_id:
                message_id = await self._edit(known.message_id, message)
                keep = keep or message_id != known.message_id
            else:
                message_id = await self._send(part, page, message)
                if known is not None:
                    # A crash interrupted the first attempt. The platform may have dropped this one as a duplicate
                    # and returned the older message, so bring its text up to date.
                    message_id = await self._edit(message_id, message)
                keep = True
        except ChatUnreachable as problem:
            self._count_refusal("unreachable")
            await db.run_in_thread(reachability.mark_unreachable, self.outbound_turn.conversation_id)
            raise DeliveryEnded from problem
        self.edit_interval.record_sent()
        self._sent_parts[part] = SentPart(message_id=message_id, text_hash=content_hash, card=page.record_key)
        if keep:
            await db.run_in_thread(
                records.record_part, self.outbound_turn.turn_id, part, message_id, content_hash
            )

    async def _send(self, part: int, page: MessagePage, message: OutgoingMessage) -> str:
        if part in self._sent_parts:
            log.warning("message_part_resent", turn_id=self.outbound_turn.turn_id, part=part)
        await db.run_in_thread(records.insert_part, self.outbound_turn, part, page.record_key)
        address = self._address() if part == 1 else replace(self._address(), anchor="")
        try:
            return await self._adapter.send_message(address, message)
        except MessageGone:  # the reply token has expired
            return await self._adapter.send_message(replace(address, reply_token=""), message)

    async def _edit(self, message_id: str, message: OutgoingMessage) -> str:
        """Edit a message and return its id; if the message is gone, send it again."""
        for address in dict.fromkeys((self._address(), replace(self._address(), reply_token=""))):
            try:
                await self._adapter.edit_message(address, message_id, message)
                return message_id
            except MessageGone:
                continue
        return await self._adapter.send_message(
            replace(self._address(), reply_token=""), replace(message, nonce="")
        )

    def _count_refusal(self, problem: str) -> None:
        metrics.platform_refusals.labels(self.outbound_turn.platform, problem).inc()

    def _address(self) -> OutboundAddress:
        return self.outbound_turn.address

    def drop_reply_token(self) -> None:
        """Send ordinary messages from now on, because the platform no longer accepts the token."""
        self.outbound_turn = replace(
            self.outbound_turn, address=replace(self.outbound_turn.address, reply_token="")
        )

    async def _create_buttons(self, card: DecisionCard | None) -> tuple[MessageButton, ...]:
        if card is None or not card.choices:
            return ()
        if card.subject_id not in self._buttons_by_subject:
            shown = card.choices[: self._adapter.max_buttons]
            codes = await db.run_in_thread(
                conversations.create_buttons,
                self.outbound_turn.conversation_id,
                card.subject,
                UUID(card.subject_id),
                [answer for _, answer in shown],
            )
            max_length = self._adapter.button_label_characters
            self._buttons_by_subject[card.subject_id] = tuple(
                MessageButton(label=label[:max_length], code=codes[answer], danger=answer == "reject")
                for label, answer in shown
            )
        return self._buttons_by_subject[card.subject_id]

    async def show_typing(self) -> None:
        try:
            await self._adapter.show_typing(self._address())
        except (PlatformUnavailable, PlatformBusy, CallRefused, MessageGone, ChatUnreachable):
            return  # a typing indicator is not worth a retry

    # --- Files ---

    async def send_file(self, mark: str, name: str, content: bytes) -> bool:
        """Send a file unless it was sent before; return False if the platform refuses it.

        A file whose sending was interrupted by a crash is sent again.
        """
        part = self._get_part_number(mark)
        if part in self._sent_parts and self._sent_parts[part].message_id:
            return True
        await db.run_in_thread(records.insert_part, self.outbound_turn, part, mark)
        self._sent_parts[part] = SentPart(message_id="", text_hash="", card=mark)
        address = replace(self._address(), anchor="", reply_token="")
        try:
            sent = await self._retry(lambda: self._adapter.send_file(address, name, content), FILE_ATTEMPTS)
        except (PlatformUnavailable, CallRefused, MessageGone, ChatUnreachable) as problem:
            log.warning(
                "file_delivery_failed",
                turn_id=self.outbound_turn.turn_id,
                platform=self.outbound_turn.platform,
                error=str(problem),
            )
            del self._sent_parts[part]  # a text may take its part number
            return False
        self.edit_interval.record_sent()
        self._sent_parts[part] = SentPart(message_id=sent, text_hash=mark, card=mark)
        await db.run_in_thread(records.record_part, self.outbound_turn.turn_id, part, sent, "")
        return True

    async def send_text_instead(self, mark: str, text: str) -> None:
        await self._sync_part(self._get_part_number(mark), MessagePage(text, mark=mark), settled=True)

    def _get_part_number(self, mark: str) -> int:
        """Return the file's part number: the one it already has, or the next free one."""
        known = [part for part, sent in self._sent_parts.items() if sent.card == mark]
        return known[0] if known else 1 + max(self._sent_parts, default=0)


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
