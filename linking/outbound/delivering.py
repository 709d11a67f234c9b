"""Makes a chat show what it should: sends, changes, waits as the platform says, and gives up where it must (L19)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from copilot.queries import readers
from linking import conversations, metrics
from linking.outbound import records
from linking.outbound.pace import Pace
from linking.outbound.pages import Page
from linking.outbound.progress import Card
from linking.outbound.records import Errand, Sent
from linking.platforms.base import (
    Adapter,
    Address,
    Away,
    Busy,
    Button,
    CallRefused,
    FormatRefused,
    MessageGone,
    Outgoing,
    Unreachable,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
TAKEN_BACK = "*Taken back.*"
REFUSALS = (CallRefused, FormatRefused, MessageGone)  # in no form and in no place
FILE_TRIES = 4  # a large one may never get through


class Ended(Exception):
    """Nothing more can be said there."""


class Delivery:
    """One turn's messages on the platform. `show` may be called as often as anything changes."""

    def __init__(self, errand: Errand, adapter: Adapter) -> None:
        self.errand = errand
        self._adapter = adapter
        self._sent = dict(errand.sent)
        self._codes: dict[str, tuple[Button, ...]] = {}
        self.pace = Pace(adapter.min_edit_interval[errand.address.scope], asyncio.get_running_loop().time)

    async def show(self, pages: Sequence[Page], *, final: bool) -> bool:
        """Whether the chat shows it all now; with `final` it does, or the platform is away for long."""
        done = True
        for part, page in enumerate(pages, start=1):
            settled = final or part < len(pages) or page.card is not None
            done = await self._put(part, page, settled=settled) and done
        if final:
            await self._take_back(len(pages))
        return done

    async def _take_back(self, last: int) -> None:
        """Words behind the last that were shown, and then were not said after all."""
        for part, sent in sorted(self._sent.items()):
            if part > last and sent.message_id and not sent.card:
                await self._put(part, Page(TAKEN_BACK), settled=True)

    async def _put(self, part: int, page: Page, *, settled: bool) -> bool:
        wanted = records.hash_of(page.text, with_buttons=page.card is not None)
        known = self._sent.get(part)
        if known is not None and known.message_id and known.text_hash == wanted:
            return True
        buttons = await self._buttons(page.card)
        message = Outgoing(
            body=self._adapter.render(page.text),
            buttons=buttons,
            nonce=f"{self.errand.turn_id.hex[:20]}{part:05d}",
            opens=part == 1,
            passing=not settled,
        )
        if settled:
            await self._surely(part, page, message, wanted)
            return True
        return await self._perhaps(part, page, message, wanted)

    async def _perhaps(self, part: int, page: Page, message: Outgoing, wanted: str) -> bool:
        """A step on the way: where it is too early, or the platform refuses, a later one says the same and more."""
        if self.pace.seconds_left() > 0:
            return False
        try:
            await self._once(part, page, message, wanted, keep=False)
        except Busy as problem:
            self._count("busy")
            self.pace.was_refused(problem.retry_after_seconds)
            return False
        except Away:
            self._count("away")
            self.pace.was_refused(FIRST_PAUSE_SECONDS)
            return False
        except REFUSALS:  # of this step: the whole may be taken
            self._count("refused")
            self.pace.was_refused(FIRST_PAUSE_SECONDS)
            return False
        return True

    async def _surely(self, part: int, page: Page, message: Outgoing, wanted: str) -> None:
        try:
            await self._patiently(lambda: self._once(part, page, message, wanted, keep=True))
        except REFUSALS as problem:
            self._count("refused")
            log.warning("turn %s: %s; its answer stays on the web", self.errand.turn_id, problem)
            raise Ended from problem

    async def _patiently(self, call: Callable[[], Awaitable[T]], tries: int | None = None) -> T:
        """Until the platform takes it; after so many `tries` in vain it is away indeed."""
        pause = FIRST_PAUSE_SECONDS
        for number in itertools.count(1):
            await asyncio.sleep(max(self.pace.seconds_left(), 0.0))
            try:
                return await call()
            except Busy as problem:
                self._count("busy")
                self.pace.was_refused(problem.retry_after_seconds)
            except Away as problem:
                self._count("away")
                if number == tries:
                    raise
                log.info("turn %s: %s; trying again", self.errand.turn_id, problem)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        raise AssertionError("counting does not end")

    async def _once(self, part: int, page: Page, message: Outgoing, wanted: str, *, keep: bool) -> None:
        """Send or change; what the platform took is remembered, at once where nothing will follow it."""
        known = self._sent.get(part)
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
        except Unreachable as problem:
            self._count("unreachable")
            await readers.in_thread(conversations.mark_unreachable, self.errand.conversation_id)
            raise Ended from problem
        self.pace.went_out()
        self._sent[part] = Sent(message_id=message_id, text_hash=wanted, card=page.kept_as)
        if keep:
            await readers.in_thread(records.keep_part, self.errand.turn_id, part, message_id, wanted)

    async def _send(self, part: int, page: Page, message: Outgoing) -> str:
        if part in self._sent:
            log.warning("part %s of turn %s may have been sent before a crash", part, self.errand.turn_id)
        await readers.in_thread(records.begin_part, self.errand, part, page.kept_as)
        address = self._address() if part == 1 else replace(self._address(), anchor="")
        try:
            return await self._adapter.send(address, message)
        except MessageGone:  # the promised reply has expired: the bot speaks for itself
            return await self._adapter.send(replace(address, reply_token=""), message)

    async def _edit(self, message_id: str, message: Outgoing) -> str:
        """A message that vanished is said anew."""
        for address in dict.fromkeys((self._address(), replace(self._address(), reply_token=""))):
            try:
                await self._adapter.edit(address, message_id, message)
                return message_id
            except MessageGone:
                continue
        return await self._adapter.send(replace(self._address(), reply_token=""), replace(message, nonce=""))

    def _count(self, problem: str) -> None:
        metrics.platform_refusals.labels(self.errand.platform, problem).inc()

    def _address(self) -> Address:
        return self.errand.address

    def forget_reply_token(self) -> None:
        """Its time is over: from now on the bot speaks for itself (L22)."""
        self.errand = replace(self.errand, address=replace(self.errand.address, reply_token=""))

    async def _buttons(self, card: Card | None) -> tuple[Button, ...]:
        if card is None or not card.choices:
            return ()
        if card.subject_id not in self._codes:
            shown = card.choices[: self._adapter.max_buttons]
            codes = await readers.in_thread(
                conversations.offer,
                self.errand.conversation_id,
                card.subject,
                UUID(card.subject_id),
                [answer for _, answer in shown],
            )
            most = self._adapter.button_label_characters
            self._codes[card.subject_id] = tuple(
                Button(label=label[:most], code=codes[answer], danger=answer == "reject")
                for label, answer in shown
            )
        return self._codes[card.subject_id]

    async def show_typing(self) -> None:
        try:
            await self._adapter.show_typing(self._address())
        except (Away, Busy, CallRefused, MessageGone, Unreachable):
            return  # a sign of life is worth no second try

    # --- behind the words ---

    async def send_file(self, mark: str, name: str, content: bytes) -> bool:
        """Whether the platform took it, now or before; what a crash cut off is sent again."""
        part = self._part_of(mark)
        if part in self._sent and self._sent[part].message_id:
            return True
        await readers.in_thread(records.begin_part, self.errand, part, mark)
        self._sent[part] = Sent(message_id="", text_hash="", card=mark)
        address = replace(self._address(), anchor="", reply_token="")
        try:
            sent = await self._patiently(lambda: self._adapter.send_file(address, name, content), FILE_TRIES)
        except (Away, CallRefused, MessageGone, Unreachable) as problem:
            log.warning("a file of turn %s was not sent: %s", self.errand.turn_id, problem)
            del self._sent[part]  # nothing of it stands there: words may take its place
            return False
        self.pace.went_out()
        self._sent[part] = Sent(message_id=sent, text_hash=mark, card=mark)
        await readers.in_thread(records.keep_part, self.errand.turn_id, part, sent, "")
        return True

    async def say_beside(self, mark: str, text: str) -> None:
        """Instead of a file."""
        await self._put(self._part_of(mark), Page(text, mark=mark), settled=True)

    def _part_of(self, mark: str) -> int:
        """Its own number behind all that was said, the same one when somebody else goes on."""
        known = [part for part, sent in self._sent.items() if sent.card == mark]
        return known[0] if known else 1 + max(self._sent, default=0)
