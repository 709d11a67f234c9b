"""Build the adapters of this installation's bot accounts. A platform without credentials is disabled."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from django.conf import settings
from django.utils.crypto import constant_time_compare, salted_hmac

from config.core.encryption import get_site_peppers
from linking.platforms.base import PlatformAdapter

ADAPTER_CLASSES = {
    "telegram": "linking.platforms.telegram.adapter.TelegramAdapter",
    "discord": "linking.platforms.discord.adapter.DiscordAdapter",
    "slack": "linking.platforms.slack.adapter.SlackAdapter",
    "scripted": "linking.platforms.scripted.ScriptedAdapter",
}


def load_adapter_class(platform: str) -> type[PlatformAdapter]:
    module, _, name = ADAPTER_CLASSES[platform].rpartition(".")
    adapter_class: type[PlatformAdapter] = getattr(import_module(module), name)
    return adapter_class


def build_adapter(platform: str) -> PlatformAdapter | None:
    """Build an adapter with its own connections, or return None if the platform is disabled."""
    match platform:
        case "telegram" if settings.TELEGRAM_BOT_TOKEN:
            from linking.platforms.telegram.adapter import TelegramAdapter

            return TelegramAdapter(
                token=settings.TELEGRAM_BOT_TOKEN,
                secret=settings.TELEGRAM_SECRET,
                api_url=settings.TELEGRAM_API_URL,
            )
        case "discord" if settings.DISCORD_APP_ID and settings.DISCORD_BOT_TOKEN:
            from linking.platforms.discord.adapter import DiscordAdapter

            return DiscordAdapter(
                app_id=settings.DISCORD_APP_ID,
                public_key=settings.DISCORD_PUBLIC_KEY,
                token=settings.DISCORD_BOT_TOKEN,
                api_url=settings.DISCORD_API_URL,
            )
        case "slack" if settings.SLACK_BOT_TOKEN and settings.SLACK_SIGNING_SECRET:
            from linking.platforms.slack.adapter import SlackAdapter

            return SlackAdapter(
                app_id=settings.SLACK_APP_ID,
                signing_secret=settings.SLACK_SIGNING_SECRET,
                token=settings.SLACK_BOT_TOKEN,
                api_url=settings.SLACK_API_URL,
            )
        case "scripted" if settings.SCRIPTED_PLATFORM:
            from linking.platforms.scripted import SHARED_WORLD, ScriptedAdapter

            return ScriptedAdapter(secret=_derive_secret("scripted-secret"), world=SHARED_WORLD)
        case _:
            return None


def iter_enabled_adapters() -> Iterator[PlatformAdapter]:
    for platform in ADAPTER_CLASSES:
        if (adapter := build_adapter(platform)) is not None:
            yield adapter


def get_webhook_slug(adapter: PlatformAdapter) -> str:
    """Return the unguessable part of the webhook URL, derived from SECRET_KEY."""
    return _derive_secret(_webhook_purpose(adapter))


def find_adapter_by_slug(platform: str, slug: str) -> PlatformAdapter | None:
    """Return the adapter for a webhook URL, or None if the slug is wrong or the platform is disabled.

    Slugs of a SECRET_KEY that is being rotated out stay valid until the platform knows the new URL.
    """
    adapter = build_adapter(platform)
    if adapter is None:
        return None
    valid_slugs = [_derive_secret(_webhook_purpose(adapter), pepper) for pepper in get_site_peppers()]
    return adapter if any(constant_time_compare(slug, valid) for valid in valid_slugs) else None


def _webhook_purpose(adapter: PlatformAdapter) -> str:
    return f"door:{adapter.platform}:{adapter.bot_account}"


def _derive_secret(purpose: str, pepper: str | None = None) -> str:
    return salted_hmac("linking.platforms", purpose, secret=pepper, algorithm="sha256").hexdigest()[:40]
