"""`manage.py publish_bot_commands`: publish the bots' commands to platforms that show a list of them."""

from __future__ import annotations

import asyncio
import sys

from django.core.management.base import BaseCommand

from linking.inbound.commands import COMMANDS
from linking.platforms import registry
from linking.platforms.base import PlatformAdapter, PlatformError


class Command(BaseCommand):
    help = "Publish the bots' commands. Discord needs this once before commands work, Telegram shows them in a menu."

    def handle(self, *args: object, **options: object) -> None:
        failed = False
        for adapter in registry.iter_enabled_adapters():
            try:
                asyncio.run(_publish(adapter))
            except PlatformError as problem:
                failed = True
                self.stderr.write(f"{adapter.platform}: {problem}")
            else:
                self.stdout.write(f"{adapter.platform}: {len(COMMANDS)} commands published")
        sys.exit(1 if failed else 0)


async def _publish(adapter: PlatformAdapter) -> None:
    try:
        await adapter.publish_commands(COMMANDS)
    finally:
        await adapter.aclose()
