"""One turn carried into its chat, from wherever it stands to its ending: follow its log, show what it says (L19)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from copilot import events, turns
from copilot.queries import readers
from linking.outbound import records
from linking.outbound.delivering import Delivery, Ended
from linking.outbound.enclosing import enclose_answer, enclose_files
from linking.outbound.pages import Layout
from linking.outbound.progress import STOPPED, Progress, cards_of
from linking.outbound.records import Errand
from linking.platforms.base import Adapter

LOOK_AGAIN_SECONDS = 10.0  # news can be lost with Redis; the rows cannot
AWAY_SECONDS = 1.0


class _Head(msgspec.Struct):
    turn_id: str | None = None


_head = msgspec.json.Decoder(_Head)


async def carry(errand: Errand, adapter: Adapter) -> None:
    """Returns when the answer was given, cannot be given, or waits for a person to decide."""
    carriage = _Carriage(errand, adapter)
    try:
        await carriage.run()
    except Ended:
        await readers.in_thread(records.finish, errand)


class _Carriage:
    def __init__(self, errand: Errand, adapter: Adapter) -> None:
        self._errand = errand
        self._adapter = adapter
        self._delivery = Delivery(errand, adapter)
        self._progress = Progress()
        self._layout = Layout(adapter)
        loop = asyncio.get_running_loop()
        self._clock = loop.time
        self._token_until = loop.time() + records.REPLY_TOKEN_SECONDS
        self._typed = self._heard = float("-inf")

    async def run(self) -> None:
        while True:
            try:
                cursor = await readers.in_thread(self._load)
                async with readers.listening(self._errand.session_id, cursor, tail=readers.here()) as feed:
                    if await self._follow(feed):
                        return
            except (readers.CursorLost, readers.Overflowed):
                continue
            except readers.OUTAGES:
                await asyncio.sleep(AWAY_SECONDS)

    def _load(self) -> str:
        """What the rows say now; the log's end is read before them, so that nothing falls in between."""
        cursor = readers.end_of_log(self._errand.session_id)
        standing = turns.standing(self._errand.turn_id)
        progress = Progress()
        progress.begin(turns.rows_of(self._errand.turn_id))
        if progress.has_calls():  # people are asked about these alone
            for card in cards_of(turns.asked_in(self._errand.turn_id)):
                progress.ask(card)
        if standing is None or standing.is_over:
            progress.standing = "over"
            progress.ending = STOPPED if standing is not None and standing.status == "cancelled" else ""
        elif standing.status == "waiting":
            progress.standing = "waiting"
        elif standing.status == "running":
            progress.standing = "working"
        self._progress = progress
        self._heard = self._clock()
        return cursor

    async def _follow(self, feed: readers.Feed) -> bool:
        """Whether this is done; otherwise the rows are read again."""
        while True:
            shown = await self._show()
            if self._progress.standing == "over":
                await self._finish()
                return True
            if self._progress.standing == "waiting" and shown:
                return True  # it may take days; whoever goes on comes back here
            if not await self._news(feed, shown):
                return False

    async def _news(self, feed: readers.Feed, shown: bool) -> bool:
        """Until something has changed or is due; False when nothing was heard for so long that the rows know better."""
        wait = LOOK_AGAIN_SECONDS if shown else max(self._delivery.pace.seconds_left(), 0.01)
        if self._types():
            wait = min(wait, max(self._typed + self._adapter.typing_ttl * 0.8 - self._clock(), 0.01))
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while True:
                    batch = await anext(feed)
                    self._heard = self._clock()
                    if self._take(batch) and (shown or self._progress.standing != "working"):
                        return True
        return self._clock() - self._heard < LOOK_AGAIN_SECONDS

    def _take(self, batch: list[readers.Entry]) -> bool:
        changed = False
        for entry in batch:
            if _head.decode(entry.payload).turn_id == str(self._errand.turn_id):
                changed = self._progress.take(events.decode(entry.payload)) or changed
        return changed

    def _types(self) -> bool:
        """Also while it waits for a worker: somebody looks for the first sign of life."""
        return self._adapter.supports_typing and self._progress.standing in ("queued", "working")

    async def _show(self) -> bool:
        if self._clock() > self._token_until:
            self._delivery.forget_reply_token()
        if self._types() and self._clock() - self._typed >= self._adapter.typing_ttl * 0.75:
            self._typed = self._clock()
            await self._delivery.show_typing()
        pages = self._layout.pages(self._progress)
        return await self._delivery.show(pages, final=self._progress.standing == "over")

    async def _finish(self) -> None:
        text = self._layout.whole_answer(self._progress)
        if text is not None:
            await enclose_answer(self._delivery, text)
        await enclose_files(self._delivery, self._adapter)
        await readers.in_thread(records.finish, self._errand)
