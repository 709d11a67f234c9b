"""How often a message may be changed: the platform's interval, wider for a while after it complained (L19). Pure."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from config.core import db
from linking import metrics
from linking.conversations import buttons, reachability
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

BACKOFF_FACTOR = 2.0
MAX_INTERVAL_SECONDS = 60.0
BACKOFF_RESET_SECONDS = 60.0


@dataclass
class EditInterval:
    least_seconds: float
    clock: Callable[[], float]
    _interval: float = 0.0
    _last: float = float("-inf")
    _refused: float = float("-inf")
    _not_before: float = float("-inf")

    def seconds_left(self) -> float:
        """Until the next change may go out; 0 when it may now."""
        now = self.clock()
        if now - self._refused >= BACKOFF_RESET_SECONDS:
            self._interval = self.least_seconds
        return max(self._last + max(self._interval, self.least_seconds), self._not_before) - now

    def record_sent(self) -> None:
        self._last = self.clock()

    def record_refusal(self, retry_after_seconds: float) -> None:
        """Wait what the platform says, and be slower from now on."""
        now = self.clock()
        self._refused = now
        self._not_before = now + retry_after_seconds
        self._interval = min(max(self._interval, self.least_seconds) * BACKOFF_FACTOR, MAX_INTERVAL_SECONDS)


# MERGED outbound.delivering: Makes a chat show what it should: sends, changes, waits as the platform says, and gives up where it must (L19).

log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
RETRACTED_TEXT = "*Taken back.*"
PERMANENT_ERRORS = (CallRefused, FormatRefused, MessageGone)  # in no form and in no place
FILE_ATTEMPTS = 4  # a large one may never get through


class DeliveryEnded(Exception):
    """Nothing more can be said there."""


class MessageSync:
    """One turn's messages on the platform. `show` may be called as often as anything changes."""

    def __init__(self, errand: OutboundTurn, adapter: PlatformAdapter) -> None:
        self.outbound_turn = errand
        self._adapter = adapter
        self._sent_parts = dict(errand.sent)
        self._buttons_by_subject: dict[str, tuple[MessageButton, ...]] = {}
        self.edit_interval = EditInterval(
            adapter.min_edit_interval_seconds[errand.address.scope], asyncio.get_running_loop().time
        )

    async def sync_pages(self, pages: Sequence[MessagePage], *, final: bool) -> bool:
        """Whether the chat shows it all now; with `final` it does, or the platform is away for long."""
        done = True
        for part, page in enumerate(pages, start=1):
            settled = final or part < len(pages) or page.card is not None
            done = await self._sync_part(part, page, settled=settled) and done
        if final:
            await self._retract_parts(len(pages))
        return done

    async def _retract_parts(self, last: int) -> None:
        """Words behind the last that were shown, and then were not said after all."""
        for part, sent in sorted(self._sent_parts.items()):
            if part > last and sent.message_id and not sent.card:
                await self._sync_part(part, MessagePage(RETRACTED_TEXT), settled=True)

    async def _sync_part(self, part: int, page: MessagePage, *, settled: bool) -> bool:
        wanted = records.hash_content(page.text, with_buttons=page.card is not None)
        known = self._sent_parts.get(part)
        if known is not None and known.message_id and known.text_hash == wanted:
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
            await self._send_final(part, page, message, wanted)
            return True
        return await self._try_once(part, page, message, wanted)

    async def _try_once(self, part: int, page: MessagePage, message: OutgoingMessage, wanted: str) -> bool:
        """A step on the way: where it is too early, or the platform refuses, a later one says the same and more."""
        if self.edit_interval.seconds_left() > 0:
            return False
        try:
            await self._send_or_edit(part, page, message, wanted, keep=False)
        except PlatformBusy as problem:
            self._count_refusal("busy")
            self.edit_interval.record_refusal(problem.retry_after_seconds)
            return False
        except PlatformUnavailable:
            self._count_refusal("away")
            self.edit_interval.record_refusal(FIRST_PAUSE_SECONDS)
            return False
        except PERMANENT_ERRORS:  # of this step: the whole may be taken
            self._count_refusal("refused")
            self.edit_interval.record_refusal(FIRST_PAUSE_SECONDS)
            return False
        return True

    async def _send_final(self, part: int, page: MessagePage, message: OutgoingMessage, wanted: str) -> None:
        try:
            await self._retry(lambda: self._send_or_edit(part, page, message, wanted, keep=True))
        except PERMANENT_ERRORS as problem:
            self._count_refusal("refused")
            log.warning("turn %s: %s; its answer stays on the web", self.outbound_turn.turn_id, problem)
            raise DeliveryEnded from problem

    async def _retry(self, call: Callable[[], Awaitable[T]], tries: int | None = None) -> T:
        """Until the platform takes it; after so many `tries` in vain it is away indeed."""
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
                log.info("turn %s: %s; trying again", self.outbound_turn.turn_id, problem)
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)
        raise AssertionError("counting does not end")

    async def _send_or_edit(
        self, part: int, page: MessagePage, message: OutgoingMessage, wanted: str, *, keep: bool
    ) -> None:
        """Send or change; what the platform took is remembered, at once where nothing will follow it."""
        known = self._sent_parts.get(part)
        try:
            if known is not None and known.message_id:
                message_id = await self._edit(known.message_id, message)
                keep = keep or message_id != known.message_id
            else:
                message_id = await self._send(part, page, message)
                if (
                    known is not None
                ):  # where a crash cut its sending off, the platform may answer with what it took then
                    message_id = await self._edit(message_id, message)
                keep = True
        except ChatUnreachable as problem:
            self._count_refusal("unreachable")
            await db.run_in_thread(reachability.mark_unreachable, self.outbound_turn.conversation_id)
            raise DeliveryEnded from problem
        self.edit_interval.record_sent()
        self._sent_parts[part] = SentPart(message_id=message_id, text_hash=wanted, card=page.record_key)
        if keep:
            await db.run_in_thread(records.record_part, self.outbound_turn.turn_id, part, message_id, wanted)

    async def _send(self, part: int, page: MessagePage, message: OutgoingMessage) -> str:
        if part in self._sent_parts:
            log.warning(
                "part %s of turn %s may have been sent before a crash", part, self.outbound_turn.turn_id
            )
        await db.run_in_thread(records.insert_part, self.outbound_turn, part, page.record_key)
        address = self._address() if part == 1 else replace(self._address(), anchor="")
        try:
            return await self._adapter.send_message(address, message)
        except MessageGone:  # the promised reply has expired: the bot speaks for itself
            return await self._adapter.send_message(replace(address, reply_token=""), message)

    async def _edit(self, message_id: str, message: OutgoingMessage) -> str:
        """A message that vanished is said anew."""
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
        """Its time is over: from now on the bot speaks for itself (L22)."""
        self.outbound_turn = replace(
            self.outbound_turn, address=replace(self.outbound_turn.address, reply_token="")
        )

    async def _create_buttons(self, card: DecisionCard | None) -> tuple[MessageButton, ...]:
        if card is None or not card.choices:
            return ()
        if card.subject_id not in self._buttons_by_subject:
            shown = card.choices[: self._adapter.max_buttons]
            codes = await db.run_in_thread(
                buttons.create_buttons,
                self.outbound_turn.conversation_id,
                card.subject,
                UUID(card.subject_id),
                [answer for _, answer in shown],
            )
            most = self._adapter.button_label_characters
            self._buttons_by_subject[card.subject_id] = tuple(
                MessageButton(label=label[:most], code=codes[answer], danger=answer == "reject")
                for label, answer in shown
            )
        return self._buttons_by_subject[card.subject_id]

    async def show_typing(self) -> None:
        try:
            await self._adapter.show_typing(self._address())
        except (PlatformUnavailable, PlatformBusy, CallRefused, MessageGone, ChatUnreachable):
            return  # a sign of life is worth no second try

    # --- behind the words ---

    async def send_file(self, mark: str, name: str, content: bytes) -> bool:
        """Whether the platform took it, now or before; what a crash cut off is sent again."""
        part = self._get_part_number(mark)
        if part in self._sent_parts and self._sent_parts[part].message_id:
            return True
        await db.run_in_thread(records.insert_part, self.outbound_turn, part, mark)
        self._sent_parts[part] = SentPart(message_id="", text_hash="", card=mark)
        address = replace(self._address(), anchor="", reply_token="")
        try:
            sent = await self._retry(lambda: self._adapter.send_file(address, name, content), FILE_ATTEMPTS)
        except (PlatformUnavailable, CallRefused, MessageGone, ChatUnreachable) as problem:
            log.warning("a file of turn %s was not sent: %s", self.outbound_turn.turn_id, problem)
            del self._sent_parts[part]  # nothing of it stands there: words may take its place
            return False
        self.edit_interval.record_sent()
        self._sent_parts[part] = SentPart(message_id=sent, text_hash=mark, card=mark)
        await db.run_in_thread(records.record_part, self.outbound_turn.turn_id, part, sent, "")
        return True

    async def send_text_instead(self, mark: str, text: str) -> None:
        """Instead of a file."""
        await self._sync_part(self._get_part_number(mark), MessagePage(text, mark=mark), settled=True)

    def _get_part_number(self, mark: str) -> int:
        """Its own number behind all that was said, the same one when somebody else goes on."""
        known = [part for part, sent in self._sent_parts.items() if sent.card == mark]
        return known[0] if known else 1 + max(self._sent_parts, default=0)
