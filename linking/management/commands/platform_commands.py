"""`manage.py platform_commands`: platforms that show people a list of commands are told what our bots understand."""

from __future__ import annotations

import asyncio
import sys

from django.core.management.base import BaseCommand

from linking import platforms
from linking.inbound import COMMANDS
from linking.platforms.base import Adapter, PlatformProblem


class Command(BaseCommand):
    help = "Publish the bots' commands: Discord needs it once before anybody can give one, Telegram shows a menu."

    def handle(self, *args: object, **options: object) -> None:
        failed = False
        for adapter in platforms.switched_on():
            try:
                asyncio.run(_publish(adapter))
            except PlatformProblem as problem:
                failed = True
                self.stderr.write(f"{adapter.platform}: {problem}")
            else:
                self.stdout.write(f"{adapter.platform}: {len(COMMANDS)} commands are known")
        sys.exit(1 if failed else 0)


async def _publish(adapter: Adapter) -> None:
    try:
        await adapter.publish_commands(COMMANDS)
    finally:
        await adapter.aclose()
