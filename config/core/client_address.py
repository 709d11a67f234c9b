"""Know the network address that the present request or socket command came from.

The outermost ASGI layer believes `X-Forwarded-For` of trusted proxies alone (TRUST_PROXY), so that what is bound here is
the client's own address, or that of whatever stands in front of the application unannounced.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.conf import settings

_address: ContextVar[str] = ContextVar("client_address", default="")


@contextmanager
def bound_address(address: str) -> Iterator[None]:
    token = _address.set(address)
    try:
        yield
    finally:
        _address.reset(token)


def hash_client_address() -> int | None:
    """Return a keyed hash of the client's network, to count by without storing who it was.

    None without an address, and for private ones: behind an unannounced proxy, or in an office's own network, everybody
    has the same. Of IPv6 the network counts, because one subscriber has 2**64 addresses.
    """
    try:
        address = ipaddress.ip_address(_address.get())
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if not address.is_global:
        return None
    network = ipaddress.ip_network((address, 64 if address.version == 6 else 32), strict=False)
    digest = hmac.digest(settings.SECRET_KEY.encode(), f"client-address:{network}".encode(), hashlib.sha256)
    return int.from_bytes(digest[:8], "big", signed=True)
