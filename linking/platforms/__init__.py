"""The platforms there are, and the bot account that this installation has on each; one without credentials is off."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from django.conf import settings
from django.utils.crypto import constant_time_compare, salted_hmac

from config.core.secret_hashes import site_peppers
from linking.platforms.base import Adapter

ADAPTERS = {
    "telegram": "linking.platforms.telegram.Telegram",
    "discord": "linking.platforms.discord.Discord",
    "slack": "linking.platforms.slack.Slack",
    "scripted": "linking.platforms.scripted.Scripted",
}


def adapter_class(platform: str) -> type[Adapter]:
    module, _, name = ADAPTERS[platform].rpartition(".")
    found: type[Adapter] = getattr(import_module(module), name)
    return found


def build(platform: str) -> Adapter | None:
    """Our bot account there, with connections of its own; None where the platform is off (L26)."""
    match platform:
        case "telegram" if settings.TELEGRAM_BOT_TOKEN:
            from linking.platforms.telegram import Telegram

            return Telegram(
                token=settings.TELEGRAM_BOT_TOKEN,
                secret=settings.TELEGRAM_SECRET,
                api_url=settings.TELEGRAM_API_URL,
            )
        case "discord" if settings.DISCORD_APP_ID and settings.DISCORD_BOT_TOKEN:
            from linking.platforms.discord import Discord

            return Discord(
                app_id=settings.DISCORD_APP_ID,
                public_key=settings.DISCORD_PUBLIC_KEY,
                token=settings.DISCORD_BOT_TOKEN,
                api_url=settings.DISCORD_API_URL,
            )
        case "slack" if settings.SLACK_BOT_TOKEN and settings.SLACK_SIGNING_SECRET:
            from linking.platforms.slack import Slack

            return Slack(
                app_id=settings.SLACK_APP_ID,
                signing_secret=settings.SLACK_SIGNING_SECRET,
                token=settings.SLACK_BOT_TOKEN,
                api_url=settings.SLACK_API_URL,
            )
        case "scripted" if settings.SCRIPTED_PLATFORM:
            from linking.platforms.scripted import WORLD, Scripted

            return Scripted(secret=_derived("scripted-secret"), world=WORLD)
        case _:
            return None


def switched_on() -> Iterator[Adapter]:
    for platform in ADAPTERS:
        if (adapter := build(platform)) is not None:
            yield adapter


def door_of(adapter: Adapter) -> str:
    """Where the platform knocks: a slug that nobody can guess, the same for as long as the secret key is."""
    return _derived(_door_purpose(adapter))


def behind(platform: str, slug: str) -> Adapter | None:
    """Whose door this is; None for one that does not exist, or is shut.

    Doors of a SECRET_KEY that is being rotated out stay open, until the platform was told the new address.
    """
    adapter = build(platform)
    if adapter is None:
        return None
    doors = [_derived(_door_purpose(adapter), pepper) for pepper in site_peppers()]
    return adapter if any(constant_time_compare(slug, door) for door in doors) else None


def _door_purpose(adapter: Adapter) -> str:
    return f"door:{adapter.platform}:{adapter.bot_account}"


def _derived(purpose: str, pepper: str | None = None) -> str:
    return salted_hmac("linking.platforms", purpose, secret=pepper, algorithm="sha256").hexdigest()[:40]
