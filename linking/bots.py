"""The bundled bots of this installation, and their public addresses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlencode

from django.conf import settings
from django.utils.translation import gettext as _

from linking.display_names import clean_name
from linking.models import BotKey, Platform
from linking.platforms import registry


@dataclass(frozen=True, kw_only=True)
class OfferedBot:
    platform: str
    name: str
    url: str
    how: str


def list_offered_bots() -> list[OfferedBot]:
    """Platforms that are set up and can be opened by an address."""
    found: list[OfferedBot] = []
    if settings.TELEGRAM_BOT_TOKEN and settings.TELEGRAM_BOT_NAME:
        url = f"https://t.me/{settings.TELEGRAM_BOT_NAME}"
        found.append(
            _build_offer(Platform.TELEGRAM, url, "Open the bot and press Start, or add it to a group.")
        )
    if settings.DISCORD_BOT_TOKEN and settings.DISCORD_APP_ID:
        asked = {"client_id": settings.DISCORD_APP_ID, "scope": "bot applications.commands"}
        url = f"https://discord.com/oauth2/authorize?{urlencode(asked)}"
        found.append(_build_offer(Platform.DISCORD, url, "Add the bot to a server, or write to it."))
    if settings.SLACK_BOT_TOKEN and settings.SLACK_APP_URL:
        found.append(_build_offer(Platform.SLACK, settings.SLACK_APP_URL, "Open the app in your workspace."))
    return found


def _build_offer(platform: Platform, url: str, how: str) -> OfferedBot:
    return OfferedBot(platform=platform.value, name=platform.label, url=url, how=how)


def get_bot_names(accounts: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Name the bots behind (platform, bot account) pairs for people, as the installation's staff named them."""
    wanted = set(accounts)
    ours = {(adapter.platform, adapter.bot_account) for adapter in registry.iter_enabled_adapters()}
    keys = BotKey.objects.filter(bot_account__in={account for _, account in wanted}).order_by("created_at")
    named = {(key.platform, key.bot_account): key.name for key in keys}
    return {
        one: _("our own bot") if one in ours else clean_name(named.get(one, "")) or one[1] for one in wanted
    }
