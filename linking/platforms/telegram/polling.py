"""Fetch updates from Telegram by long polling, where no webhook can be reached."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import structlog

from linking.platforms.base import (
    MALFORMED_ANSWER_ERRORS,
    CallRefused,
    IncomingUpdate,
    PlatformMisconfigured,
    PlatformUnavailable,
    UpdateFetcher,
)
from linking.platforms.telegram import wire
from linking.platforms.telegram.adapter import ALLOWED_UPDATES, TelegramAdapter, to_platform_error

if TYPE_CHECKING:
    from telegram import Update

log = structlog.get_logger(__name__)

POLL_LIMIT = 100
POLL_TIMEOUT_SECONDS = 50


class TelegramPolling(UpdateFetcher):
    """Long polling. The offset advances when the next batch is requested, so a crash repeats updates but loses none."""

    def __init__(self, adapter: TelegramAdapter, *, seconds: int = POLL_TIMEOUT_SECONDS) -> None:
        self._adapter = adapter
        self._seconds = seconds

    async def prepare(self, *, replace_webhook: bool) -> None:
        try:
            url, _, _ = await self._adapter.get_webhook_info()
            if url and not replace_webhook:
                raise PlatformMisconfigured(
                    "A webhook is set for this bot, so Telegram does not allow polling. "
                    "Remove it with `manage.py telegram_webhook delete` or start with --replace-webhook."
                )
            if url:
                await self._adapter.delete_webhook()
        except CallRefused as problem:
            raise PlatformMisconfigured(str(problem)) from None

    async def iter_batches(self) -> AsyncIterator[Sequence[IncomingUpdate]]:
        offset: int | None = None
        while True:
            updates = await self._fetch_updates(offset)
            yield [parsed for update in updates if (parsed := self._parse_update(update)) is not None]
            if updates:
                offset = updates[-1].update_id + 1

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
            raise PlatformMisconfigured("Another process is already polling this bot's updates.") from None
        except TelegramError as problem:
            raise to_platform_error(problem) from None
        except MALFORMED_ANSWER_ERRORS as problem:
            raise PlatformUnavailable(f"malformed response from Telegram: {type(problem).__name__}") from None

    def _parse_update(self, update: Update) -> IncomingUpdate | None:
        try:
            parsed = msgspec.convert(update.to_dict(), wire.TelegramUpdate, strict=False)
            return wire.parse_update(parsed, self._adapter.bot_account)
        except msgspec.ValidationError:
            log.warning("update_malformed", platform=TelegramAdapter.platform)
            return None

    async def aclose(self) -> None:
        await self._adapter.aclose()
