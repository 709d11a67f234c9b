"""Create a bot key and print it once."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from config.core.errors import RequestRefused
from linking.links import bot_keys
from linking.models import PLATFORMS
from linking.models.bot_keys import BOT_KEY_SCOPES


class Command(BaseCommand):
    help = "Create a key for a bot account and print it once; it cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--platform", required=True, choices=PLATFORMS)
        parser.add_argument("--name", required=True, help="what the key is for, as shown in lists")
        parser.add_argument("--bot-account", required=True, help="the platform's own id of this bot or app")
        parser.add_argument("--scopes", nargs="+", choices=BOT_KEY_SCOPES, required=True)
        parser.add_argument("--networks", nargs="*", default=[], help="networks that it may be used from")
        parser.add_argument("--rate", type=int, help="calls per minute")
        parser.add_argument("--days", type=int, help="days until it expires (default: never)")

    def handle(
        self,
        *,
        platform: str,
        name: str,
        bot_account: str,
        scopes: list[str],
        networks: list[str],
        rate: int | None,
        days: int | None,
        **_options: object,
    ) -> None:
        try:
            made = bot_keys.create_bot_key(
                name=name,
                platform=platform,
                bot_account=bot_account,
                scopes=scopes,
                rate_per_minute=rate,
                allowed_cidrs=networks,
                expires_at=timezone.now() + timedelta(days=days) if days is not None else None,
            )
        except RequestRefused as refusal:
            raise CommandError(refusal.message) from refusal
        self.stdout.write(made.key)
