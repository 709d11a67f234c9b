"""Long polling of Telegram: updates are fetched where no door can be opened (L21, L24)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from linking.platforms import telegram_wire
from linking.platforms.base import NONSENSE, Away, CallRefused, Fetcher, Incoming, Misconfigured
from linking.platforms.telegram import ALLOWED_UPDATES, Telegram
from linking.platforms.telegram_problems import failure

if TYPE_CHECKING:
    from telegram import Update

log = logging.getLogger(__name__)

POLL_LIMIT = 100
POLL_SECONDS = 50


class Polling(Fetcher):
    """Long polling. The offset moves on only when the next batch is asked for, so a crash repeats and never loses."""

    def __init__(self, adapter: Telegram, *, seconds: int = POLL_SECONDS) -> None:
        self._adapter = adapter
        self._seconds = seconds

    async def prepare(self, *, replace_webhook: bool) -> None:
        try:
            url, _, _ = await self._adapter.webhook_info()
            if url and not replace_webhook:
                raise Misconfigured(
                    "a webhook is set for this bot, and Telegram then gives nothing to a poller; "
                    "remove it with `manage.py telegram_webhook delete`, or start with --replace-webhook"
                )
            if url:
                await self._adapter.delete_webhook()
        except CallRefused as problem:
            raise Misconfigured(str(problem)) from None

    async def batches(self) -> AsyncIterator[Sequence[Incoming]]:
        offset: int | None = None
        while True:
            found = await self._fetch(offset)
            yield [one for update in found if (one := self._read(update)) is not None]
            if found:
                offset = found[-1].update_id + 1

    async def _fetch(self, offset: int | None) -> Sequence[Update]:
        from telegram.error import Conflict, TelegramError

        bot = self._adapter.bot()
        try:
            return await bot.get_updates(
                offset=offset,
                limit=POLL_LIMIT,
                timeout=self._seconds,
                read_timeout=self._seconds + 10,
                allowed_updates=list(ALLOWED_UPDATES),
            )
        except Conflict:
            raise Misconfigured("another process polls this bot's updates") from None
        except TelegramError as problem:
            raise failure(problem) from None
        except NONSENSE as problem:
            raise Away(f"Telegram answered nonsense: {type(problem).__name__}") from None

    def _read(self, update: Update) -> Incoming | None:
        try:
            read = msgspec.convert(update.to_dict(), telegram_wire.Update, strict=False)
            return telegram_wire.incoming(read, self._adapter.bot_account)
        except msgspec.ValidationError:
            log.warning("an update of Telegram is not what its documents say; it is left out")
            return None

    async def aclose(self) -> None:
        await self._adapter.aclose()
