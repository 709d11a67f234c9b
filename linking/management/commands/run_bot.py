"""`manage.py run_bot <platform>`: fetch updates where platforms cannot reach a webhook; turns run elsewhere."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from linking import tasks
from linking.inbound.update_poller import UpdatePoller
from linking.platforms import registry
from linking.platforms.base import PlatformAdapter, PlatformMisconfigured, UpdateFetcher

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
        except PlatformMisconfigured as problem:
            self.stderr.write(f"run_bot {platform}: {problem}")
            sys.exit(BAD_CONFIGURATION)


def _adapter(platform: str, bot_account: str) -> PlatformAdapter:
    adapter = registry.build_adapter(platform)
    if adapter is None:
        raise PlatformMisconfigured("it has no credentials here; see `manage.py doctor`")
    if bot_account and bot_account != adapter.bot_account:
        raise PlatformMisconfigured("the configured token belongs to another bot account")
    return adapter


def _fetcher(adapter: PlatformAdapter) -> UpdateFetcher:
    """Import the platform's client only when it is needed, because it is large."""
    from linking.platforms.discord.adapter import DiscordAdapter
    from linking.platforms.scripted import LineFetcher
    from linking.platforms.slack.adapter import SlackAdapter
    from linking.platforms.telegram.adapter import TelegramAdapter

    match adapter:
        case TelegramAdapter():
            from linking.platforms.telegram.polling import TelegramPolling

            return TelegramPolling(adapter)
        case DiscordAdapter():
            from linking.platforms.discord.gateway import DiscordGateway

            return DiscordGateway(adapter)
        case SlackAdapter():
            from linking.platforms.slack.socket_mode import SlackSocketMode

            return SlackSocketMode(adapter, app_token=settings.SLACK_APP_TOKEN)
        case _:
            return LineFetcher(sys.stdin)


async def _run(adapter: PlatformAdapter, *, replace_webhook: bool) -> None:
    runner = UpdatePoller(_fetcher(adapter), adapter.platform, adapter.bot_account, tasks.receive_update)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, runner.stop)
    beating = asyncio.create_task(_beat())
    try:
        await runner.run(replace_webhook=replace_webhook)
    finally:
        beating.cancel()


async def _beat() -> None:
    """Touch HEARTBEAT_FILE while this loop runs, for container checks."""
    while settings.HEARTBEAT_FILE:
        _touch(Path(settings.HEARTBEAT_FILE))
        await asyncio.sleep(HEARTBEAT_SECONDS)


def _touch(file: Path) -> None:
    file.touch()
