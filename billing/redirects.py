"""Where a browser may be sent after Stripe: to our own page, or to an origin that is listed (B15.6)."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _

from billing.errors import InvalidRequest

LONGEST = 2_000
_PORTS = {"http": 80, "https": 443}
_PLAIN = re.compile(r"[\x21-\x5b\x5d-\x7e]+")  # ASCII without spaces, control characters and the backslash
_HOST = re.compile(r"[a-z0-9.-]+|\[[0-9a-f:.]+\]")


def plan_page() -> str:
    return f"{settings.SITE_URL}{reverse('billing_plan')}"


def portal() -> str:
    """Ours: it opens Stripe's for whoever is signed in, and is good for as long as the site is."""
    return f"{settings.SITE_URL}{reverse('billing_portal')}"


def checked(name: str, url: str) -> str:
    """The same address if its origin is listed; "" stays "" and means our own page. Anything else is refused."""
    if url and origin_of(url) not in {origin_of(origin) for origin in settings.BILLING_REDIRECT_ORIGINS}:
        raise InvalidRequest({name: [_("This address is not one that we send browsers to.")]})
    return url


def origin_of(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port as a browser would read them; None for what two readers could read differently."""
    if len(url) > LONGEST or not _PLAIN.fullmatch(url) or "://" not in url:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    scheme, host = parts.scheme.lower(), parts.netloc.lower()
    if scheme not in _PORTS or "@" in host or not url.lower().startswith(f"{scheme}://{host}"):
        return None
    name = host.removesuffix(f":{port}") if port is not None else host
    if not _HOST.fullmatch(name) or name.startswith("xn--") or ".xn--" in name:
        return None
    return scheme, name, port if port is not None else _PORTS[scheme]
