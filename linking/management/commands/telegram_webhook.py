"""`manage.py telegram_webhook set|delete|info`: manage the webhook of our Telegram bot."""

from __future__ import annotations

import asyncio
import sys

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.urls import reverse

from linking.platforms import registry
from linking.platforms.base import PlatformError
from linking.platforms.telegram.adapter import TelegramAdapter

BAD_CONFIGURATION = 2


class Command(BaseCommand):
    help = "Set, remove or show the bot's webhook."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("act", choices=("set", "delete", "info"))

    def handle(self, *args: object, **options: object) -> None:
        adapter = registry.build_adapter("telegram")
        if not isinstance(adapter, TelegramAdapter):
            self.stderr.write("telegram_webhook: Telegram is not configured; see `manage.py doctor`")
            sys.exit(BAD_CONFIGURATION)
        try:
            self.stdout.write(asyncio.run(_act(adapter, str(options["act"]))))
        except PlatformError as problem:
            self.stderr.write(f"telegram_webhook: {problem}")
            sys.exit(1)


async def _act(adapter: TelegramAdapter, act: str) -> str:
    path = reverse("platform_webhook", args=[adapter.platform, registry.get_webhook_slug(adapter)])
    try:
        match act:
            case "set":
                await adapter.set_webhook(f"{settings.SITE_URL}{path}")
                return "The webhook is set."
            case "delete":
                await adapter.delete_webhook()
                return "The webhook is removed."
            case _:
                url, waiting, complaint = await adapter.get_webhook_info()
                owner = "ours" if url.endswith(path) else "somebody else's" if url else "not set"
                return f"The webhook is {owner}; {waiting} updates are waiting. {complaint}".strip()
    finally:
        await adapter.aclose()
