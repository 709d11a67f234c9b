"""Build and check the URLs that browsers return to after Stripe: our own pages or an allowed origin."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _

from billing.errors import InvalidRequest

MAX_URL_LENGTH = 2_000
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PLAIN_ASCII_PATTERN = re.compile(r"[\x21-\x5b\x5d-\x7e]+")  # printable ASCII without space and backslash
_HOST_PATTERN = re.compile(r"[a-z0-9.-]+|\[[0-9a-f:.]+\]")


def get_plan_page_url() -> str:
    return f"{settings.SITE_URL}{reverse('billing_plan')}"


def get_portal_page_url() -> str:
    """Return our own page that redirects to Stripe's portal. Unlike Stripe's URLs, it does not expire."""
    return f"{settings.SITE_URL}{reverse('billing_portal')}"


def check_redirect_url(name: str, url: str) -> str:
    """Return the URL if its origin is allowed, else raise InvalidRequest. "" stays "" and means our own page."""
    if url and parse_origin(url) not in {
        parse_origin(origin) for origin in settings.BILLING_REDIRECT_ORIGINS
    }:
        raise InvalidRequest({name: [_("Redirects to this address aren't allowed.")]})
    return url


def parse_origin(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port as a browser reads them, or None if the URL is ambiguous."""
    if len(url) > MAX_URL_LENGTH or not _PLAIN_ASCII_PATTERN.fullmatch(url) or "://" not in url:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    scheme, host = parts.scheme.lower(), parts.netloc.lower()
    if scheme not in _DEFAULT_PORTS or "@" in host or not url.lower().startswith(f"{scheme}://{host}"):
        return None
    name = host.removesuffix(f":{port}") if port is not None else host
    if not _HOST_PATTERN.fullmatch(name) or name.startswith("xn--") or ".xn--" in name:
        return None
    return scheme, name, port if port is not None else _DEFAULT_PORTS[scheme]
