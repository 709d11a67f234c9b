"""Post webhook deliveries over HTTPS, to public addresses only, which are checked when the connection is made."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import aiohttp
from yarl import URL

from config.core import url_safety
from config.core.errors import InvalidRequest
from config.core.url_safety import AddressNotPublic, PublicAddressGuard, ResolverFactory, SystemResolver

TIMEOUT_SECONDS = 10.0  # for the whole delivery
ALLOWED_PORTS = frozenset({443, 8443})


@dataclass(frozen=True, kw_only=True)
class DeliveryResponse:
    status: int | None  # None if there was no response
    retry_after: str = ""
    error: str = ""  # one word, if there was no response


class DeliveryClient:
    """An HTTP client for deliveries. `unchecked`, `resolver` and `trusts` exist for tests only."""

    def __init__(
        self,
        *,
        ports: Collection[int] = ALLOWED_PORTS,
        unchecked: Collection[str] = (),
        resolver: ResolverFactory = SystemResolver,
        trusts: ssl.SSLContext | None = None,
    ) -> None:
        self._ports = frozenset(ports)
        self._address_guard = PublicAddressGuard(unchecked=unchecked, resolver=resolver)
        self._trusts = trusts

    def check_url(self, url: str) -> URL:
        """Return the URL as it will be called; raise InvalidRequest. The host name is resolved later, when connecting."""
        try:
            parsed = URL(url)
            problem = url_safety.find_url_problem(parsed, self._ports)
        except ValueError:
            raise InvalidRequest("url: not a valid URL.") from None
        if parsed.scheme != "https":
            raise InvalidRequest("url: use an https:// address.")
        if problem is None and (address := url_safety.parse_numeric_address(parsed.host or "")):
            try:
                self._address_guard.check_address(address)
            except AddressNotPublic:
                problem = ("address_refused", url_safety.NOT_PUBLIC_MESSAGE)
        if problem is not None:
            raise InvalidRequest(f"url: {problem[1]}", code=problem[0])
        return parsed.with_fragment(None)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> DeliveryResponse:
        """Post a body. Redirects are not followed, because their target was not checked."""
        try:
            target = self.check_url(url)
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
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
            connector=self._address_guard.make_connector(ssl=trusted),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
        )
