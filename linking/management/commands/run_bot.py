"""`manage.py run_bot <platform>`: fetches updates where no door can be opened; turns run elsewhere (L24)."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from linking import platforms, tasks
from linking.fetching import Runner
from linking.platforms.base import Adapter, Fetcher, Misconfigured

FETCHED = ("telegram", "discord", "slack", "scripted")
BAD_CONFIGURATION = 2
HEARTBEAT_SECONDS = 5.0


class Command(BaseCommand):
    help = "Fetch a platform's updates into the inbox: one active process per bot account, others stand by."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("platform", choices=FETCHED)
        parser.add_argument("--bot-account", default="", help="Refuse to start for any other account.")
        parser.add_argument(
            "--replace-webhook", action="store_true", help="Telegram: remove the webhook first."
        )

    def handle(self, *args: object, **options: object) -> None:
        platform = str(options["platform"])
        try:
            adapter = _adapter(platform, str(options["bot_account"]))
            asyncio.run(_run(adapter, replace_webhook=bool(options["replace_webhook"])))
        except Misconfigured as problem:
            self.stderr.write(f"run_bot {platform}: {problem}")
            sys.exit(BAD_CONFIGURATION)


def _adapter(platform: str, bot_account: str) -> Adapter:
    adapter = platforms.build(platform)
    if adapter is None:
        raise Misconfigured("it has no credentials here; see `manage.py doctor`")
    if bot_account and bot_account != adapter.bot_account:
        raise Misconfigured("the configured token belongs to another bot account")
    return adapter


def _fetcher(adapter: Adapter) -> Fetcher:
    """Loaded one by one: the vendors' clients are heavy."""
    from linking.platforms.discord import Discord
    from linking.platforms.scripted import Lines
    from linking.platforms.slack import Slack
    from linking.platforms.telegram import Telegram

    match adapter:
        case Telegram():
            from linking.platforms.telegram_polling import Polling

            return Polling(adapter)
        case Discord():
            from linking.platforms.discord_gateway import Gateway

            return Gateway(adapter, gateway_url=settings.DISCORD_GATEWAY_URL)
        case Slack():
            from linking.platforms.slack_socket import SocketMode

            return SocketMode(adapter, app_token=settings.SLACK_APP_TOKEN)
        case _:
            return Lines(sys.stdin)


async def _run(adapter: Adapter, *, replace_webhook: bool) -> None:
    runner = Runner(_fetcher(adapter), adapter.platform, adapter.bot_account, tasks.receive)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, runner.stop)
    beating = asyncio.create_task(_beat())
    try:
        await runner.run(replace_webhook=replace_webhook)
    finally:
        beating.cancel()


async def _beat() -> None:
    """For as long as this loop turns, as Celery's processes do: what a container's check looks at (D15)."""
    while settings.HEARTBEAT_FILE:
        _touch(Path(settings.HEARTBEAT_FILE))
        await asyncio.sleep(HEARTBEAT_SECONDS)


def _touch(file: Path) -> None:
    file.touch()
