"""System checks of linking's settings; each message names its variable."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from linking.platforms import registry
from linking.platforms.base import find_undeclared

TELEGRAM_SECRET_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,256}")
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
# A platform is enabled by all of its first variables; the other variables need them.
PLATFORM_CREDENTIALS = {
    "Telegram": ("TELEGRAM_BOT_TOKEN", "TELEGRAM_SECRET"),
    "Discord": ("DISCORD_BOT_TOKEN", "DISCORD_APP_ID", "DISCORD_PUBLIC_KEY"),
    "Slack": ("SLACK_BOT_TOKEN", "SLACK_SIGNING_SECRET"),
}


@register
def check_site_url(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    parts = urlsplit(settings.SITE_URL)
    local = parts.hostname in LOCAL_HOSTS or settings.ENVIRONMENT != "production"
    if parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and local)):
        return []
    text = "SITE_URL must be an absolute https address: bots hand out links below it."
    return [Error(text, id="linking.E001")]


@register
def check_platform_credentials(
    app_configs: Sequence[AppConfig] | None, **kwargs: object
) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    for platform, names in PLATFORM_CREDENTIALS.items():
        missing = [name for name in names if not getattr(settings, name)]
        if missing and len(missing) < len(names):
            text = f"{platform} is half configured: {', '.join(missing)} is missing."
            found.append(Error(text, id="linking.E002"))
    if settings.TELEGRAM_SECRET and not TELEGRAM_SECRET_PATTERN.fullmatch(settings.TELEGRAM_SECRET):
        text = "TELEGRAM_SECRET must have 1 to 256 letters, digits, _ and -."
        found.append(Error(text, id="linking.E003"))
    return found


@register
def check_adapter_declarations(
    app_configs: Sequence[AppConfig] | None, **kwargs: object
) -> list[CheckMessage]:
    """Check that every adapter declares its capabilities: they have no defaults."""
    found: list[CheckMessage] = []
    for platform in registry.ADAPTER_CLASSES:
        for name in find_undeclared(registry.load_adapter_class(platform)):
            found.append(Error(f"The adapter of {platform} does not declare {name}.", id="linking.E005"))
    return found
