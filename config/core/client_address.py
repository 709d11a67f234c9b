"""Know the network address that the current request or socket command came from.

The outermost ASGI middleware trusts `X-Forwarded-For` of known proxies only (TRUST_PROXY). The address bound here is
the client's own, or that of a proxy which is not configured.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.conf import settings
from django.http import HttpRequest


def get_request_address(request: HttpRequest | None) -> str | None:
    try:
        return str(ipaddress.ip_address(request.META.get("REMOTE_ADDR", ""))) if request is not None else None
    except ValueError:
        return None  # a Unix socket has no address


_client_address: ContextVar[str] = ContextVar("client_address", default="")


@contextmanager
def bind_client_address(address: str) -> Iterator[None]:
    token = _client_address.set(address)
    try:
        yield
    finally:
        _client_address.reset(token)


def get_public_network(address: str) -> str | None:
    """Return the network that an address is counted under: itself, or the /64 of one IPv6 subscriber.

    None for text that is not an address, and for private addresses, which many clients share behind an unknown proxy or
    in an office.
    """
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return None
    if isinstance(known, ipaddress.IPv6Address):
        known = known.ipv4_mapped or known
    if not known.is_global:
        return None
    return str(ipaddress.ip_network((known, 64 if known.version == 6 else 32), strict=False))


def hash_client_address() -> int | None:
    """Return a keyed hash of the client's public network, to count by without storing who it was."""
    network = get_public_network(_client_address.get())
    if network is None:
        return None
    digest = hmac.digest(settings.SECRET_KEY.encode(), f"client-address:{network}".encode(), hashlib.sha256)
    return int.from_bytes(digest[:8], "big", signed=True)
