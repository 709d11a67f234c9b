"""One delivery goes out: by https, to a public address that is checked where it is connected to, and nowhere else (L17)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import aiohttp
from django.conf import settings
from yarl import URL

from config.core import url_safety
from config.core.errors import InvalidRequest
from config.core.url_safety import AddressNotPublic, PublicAddressGuard, ResolverFactory, SystemResolver

ALLOWED_PORTS = frozenset({443, 8443})


@dataclass(frozen=True, kw_only=True)
class DeliveryResponse:
    """What the receiver said; no status: nobody answered, and `error` says why in a word."""

    status: int | None
    retry_after: str = ""
    error: str = ""


class DeliveryClient:
    """`unchecked`, `resolver` and `trusts` exist for tests; no setting leads to them."""

    def __init__(
        self,
        *,
        ports: Collection[int] = ALLOWED_PORTS,
        unchecked: Collection[str] = (),
        resolver: ResolverFactory = SystemResolver,
        trusts: ssl.SSLContext | None = None,
    ) -> None:
        self._ports = frozenset(ports)
        self._way_out = PublicAddressGuard(unchecked=unchecked, resolver=resolver)
        self._trusts = trusts

    def check_url(self, url: str) -> URL:
        """The URL as it will be called; what its name resolves to is seen when it is."""
        try:
            parsed = URL(url)
            objection = url_safety.find_url_problem(parsed, self._ports)
        except ValueError:
            raise InvalidRequest("url: this is not a URL.") from None
        if parsed.scheme != "https":
            raise InvalidRequest("url: deliveries go by https alone.")
        if objection is None and (address := url_safety.parse_numeric_address(parsed.host or "")):
            try:
                self._way_out.check_address(address)
            except AddressNotPublic:
                objection = ("address_refused", url_safety.NOT_PUBLIC_MESSAGE)
        if objection is not None:
            raise InvalidRequest(f"url: {objection[1]}", code=objection[0])
        return parsed.with_fragment(None)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> DeliveryResponse:
        """No redirect is followed: where it leads was not checked."""
        try:
            target = self.check_url(url)
            async with (
                asyncio.timeout(settings.DELIVERY_TIMEOUT_SECONDS),
                self._session() as session,
                session.post(target, data=body, headers=headers, allow_redirects=False) as response,
            ):
                return DeliveryResponse(
                    status=response.status, retry_after=response.headers.get("Retry-After", "")[:64]
                )
        except TimeoutError:
            return DeliveryResponse(status=None, error="timeout")
        except (InvalidRequest, AddressNotPublic):
            return DeliveryResponse(status=None, error="address_refused")
        except (aiohttp.ClientError, OSError) as problem:
            refused = isinstance(problem.__cause__, AddressNotPublic) or isinstance(problem, AddressNotPublic)
            return DeliveryResponse(status=None, error="address_refused" if refused else "unreachable")

    def _session(self) -> aiohttp.ClientSession:
        trusted = self._trusts if self._trusts is not None else True
        return aiohttp.ClientSession(
            connector=self._way_out.make_connector(ssl=trusted),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
        )
