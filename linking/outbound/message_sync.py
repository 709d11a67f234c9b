"""Make a chat show a turn's messages: send and edit them at the rate the platform allows, and give up where it must."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

import structlog

from config.core import db
from linking import metrics
from linking.conversations import reachability
from linking.conversations import services as conversations
from linking.outbound import records
from linking.outbound.layout import MessagePage
from linking.outbound.records import OutboundTurn, SentPart
from linking.outbound.turn_view import DecisionCard
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
