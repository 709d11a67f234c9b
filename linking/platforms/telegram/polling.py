"""Long polling of Telegram: updates are fetched where no door can be opened (L21, L24)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from linking.platforms.base import (
    MALFORMED_ANSWER_ERRORS,
    CallRefused,
    IncomingUpdate,
    PlatformMisconfigured,
    PlatformUnavailable,
    UpdateFetcher,
)
from linking.platforms.telegram import wire
from linking.platforms.telegram.adapter import ALLOWED_UPDATES, TelegramAdapter
from linking.platforms.telegram.errors import to_platform_error

if TYPE_CHECKING:
    from telegram import Update

log = logging.getLogger(__name__)

POLL_LIMIT = 100
POLL_TIMEOUT_SECONDS = 50


class TelegramPolling(UpdateFetcher):
    """Long polling. The offset moves on only when the next batch is asked for, so a crash repeats and never loses."""

    def __init__(self, adapter: TelegramAdapter, *, seconds: int = POLL_TIMEOUT_SECONDS) -> None:
        self._adapter = adapter
        self._seconds = seconds

    async def prepare(self, *, replace_webhook: bool) -> None:
        try:
            url, _, _ = await self._adapter.get_webhook_info()
            if url and not replace_webhook:
                raise PlatformMisconfigured(
                    "a webhook is set for this bot, and Telegram then gives nothing to a poller; "
                    "remove it with `manage.py telegram_webhook delete`, or start with --replace-webhook"
                )
            if url:
                await self._adapter.delete_webhook()
        except CallRefused as problem:
            raise PlatformMisconfigured(str(problem)) from None

    async def iter_batches(self) -> AsyncIterator[Sequence[IncomingUpdate]]:
        offset: int | None = None
        while True:
            found = await self._fetch_updates(offset)
            yield [one for update in found if (one := self._parse_update(update)) is not None]
            if found:
                offset = found[-1].update_id + 1

    async def _fetch_updates(self, offset: int | None) -> Sequence[Update]:
        from telegram.error import Conflict, TelegramError

        bot = self._adapter.get_bot()
        try:
            return await bot.get_updates(
                offset=offset,
                limit=POLL_LIMIT,
                timeout=self._seconds,
                read_timeout=self._seconds + 10,
                allowed_updates=list(ALLOWED_UPDATES),
            )
        except Conflict:
            raise PlatformMisconfigured("another process polls this bot's updates") from None
        except TelegramError as problem:
            raise to_platform_error(problem) from None
        except MALFORMED_ANSWER_ERRORS as problem:
            raise PlatformUnavailable(f"Telegram answered nonsense: {type(problem).__name__}") from None

    def _parse_update(self, update: Update) -> IncomingUpdate | None:
        try:
            read = msgspec.convert(update.to_dict(), wire.TelegramUpdate, strict=False)
            return wire.parse_update(read, self._adapter.bot_account)
        except msgspec.ValidationError:
            log.warning("an update of Telegram is not what its documents say; it is left out")
            return None

    async def aclose(self) -> None:
        await self._adapter.aclose()
