"""Where a browser may be sent after Stripe: to our own page, or to an origin that is listed (B15.6)."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _

from billing.errors import InvalidRequest

MAX_URL_LENGTH = 2_000
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PLAIN_ASCII_PATTERN = re.compile(
    r"[\x21-\x5b\x5d-\x7e]+"
)  # ASCII without spaces, control characters and the backslash
_HOST_PATTERN = re.compile(r"[a-z0-9.-]+|\[[0-9a-f:.]+\]")


def get_plan_page_url() -> str:
    return f"{settings.SITE_URL}{reverse('billing_plan')}"


def get_portal_page_url() -> str:
    """Ours: it opens Stripe's for whoever is signed in, and is good for as long as the site is."""
    return f"{settings.SITE_URL}{reverse('billing_portal')}"


def check_redirect_url(name: str, url: str) -> str:
    """The same address if its origin is listed; "" stays "" and means our own page. Anything else is refused."""
    if url and parse_origin(url) not in {
        parse_origin(origin) for origin in settings.BILLING_REDIRECT_ORIGINS
    }:
        raise InvalidRequest({name: [_("This address is not one that we send browsers to.")]})
    return url


def parse_origin(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port as a browser would read them; None for what two readers could read differently."""
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
