"""System checks for billing's settings; every message names the setting to change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as CheckWarning
from django.db.models import Q

STRIPE_API_URL = "https://api.stripe.com"
_HOST_PATTERN = re.compile(r"[a-z0-9.-]+|[0-9a-f:.]+")


@register
def check_payment_settings(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    key: str = settings.STRIPE_SECRET_KEY
    found: list[CheckMessage] = []
    if key and not settings.STRIPE_WEBHOOK_SECRETS:
        text = "STRIPE_SECRET_KEY is set without STRIPE_WEBHOOK_SECRETS, so payments would never be credited."
        found.append(Error(text, id="billing.E001"))
    if not _is_stripe_or_local(settings.STRIPE_API_BASE):
        text = "STRIPE_API_BASE must be Stripe's address or a local one."
        found.append(Error(text, id="billing.E002"))
    if _is_key_of_mode(key, "live") and settings.DEBUG:
        found.append(CheckWarning("STRIPE_SECRET_KEY is a live key while DEBUG is on.", id="billing.W001"))
    if (
        _is_key_of_mode(key, "test")
        and settings.SITE_URL.startswith("https://")
        and not _is_local(settings.SITE_URL)
    ):
        text = "STRIPE_SECRET_KEY is a test key while SITE_URL is public."
        found.append(CheckWarning(text, id="billing.W002"))
    return found


@register
def check_redirect_origins(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    return [
        Error(
            f"BILLING_REDIRECT_ORIGINS: {origin!r} is not an origin such as https://example.com.",
            id="billing.E003",
        )
        for origin in settings.BILLING_REDIRECT_ORIGINS
        if not _is_origin(origin)
    ]


@register(Tags.database)
def check_plan_prices(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: object
) -> list[CheckMessage]:
    """Run only with `check --database default`."""
    from billing.models import TierPolicy

    if not databases or not settings.STRIPE_SECRET_KEY:
        return []
    sold = TierPolicy.objects.filter(selectable=True, tier__in=["PRO", "BUSINESS"])
    return [
        CheckWarning(f"The tier {row.tier} is selectable but has no Stripe price.", id="billing.W003")
        for row in sold.filter(Q(stripe_price_id=None) | Q(stripe_price_id=""))
    ]


def _is_key_of_mode(key: str, mode: str) -> bool:
    return key.startswith((f"sk_{mode}_", f"rk_{mode}_"))


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    plain = (parts.path, parts.query, parts.fragment, parts.username) == ("", "", "", None)
    return (
        parts.scheme in ("http", "https")
        and bool(_HOST_PATTERN.fullmatch(parts.hostname or ""))
        and plain
        and port != 0
    )


def _is_stripe_or_local(address: str) -> bool:
    return address == STRIPE_API_URL or (_is_origin(address) and _is_local(address))


def _is_local(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
