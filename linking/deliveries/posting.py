"""One delivery goes out: by https, to a public address that is checked where it is connected to, and nowhere else (L17)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from django.conf import settings
from yarl import URL

from copilot import addresses
from copilot.errors import InvalidRequest

PORTS = frozenset({443, 8443})
AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


class NotPublic(OSError):
    """An OSError, because that is what a resolver and a socket may raise."""


@dataclass(frozen=True, kw_only=True)
class Posted:
    """What the receiver said; no status: nobody answered, and `error` says why in a word."""

    status: int | None
    retry_after: str = ""
    error: str = ""


class ResolverFactory(Protocol):
    def __call__(self) -> AbstractResolver: ...


class _Resolver(AbstractResolver):
    """Every address of a name must be public; the connection is made to one of exactly these."""

    def __init__(self, inner: AbstractResolver, poster: Poster) -> None:
        self._inner, self._poster = inner, poster

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, socket.AF_UNSPEC)
        for result in found:
            self._poster.check_address(result["host"])
        return found

    async def close(self) -> None:
        await self._inner.close()


class Poster:
    """`unchecked`, `resolver` and `trusts` exist for tests; no setting leads to them."""

    def __init__(
        self,
        *,
        ports: Collection[int] = PORTS,
        unchecked: Collection[str] = (),
        resolver: ResolverFactory = aiohttp.ThreadedResolver,
        trusts: ssl.SSLContext | None = None,
    ) -> None:
        self._ports = frozenset(ports)
        self._unchecked = frozenset(unchecked)
        self._resolver = resolver
        self._trusts = trusts

    def checked(self, url: str) -> URL:
        """The URL as it will be called; what its name resolves to is seen when it is."""
        try:
            parsed = URL(url)
            objection = addresses.objection(parsed, self._ports)
        except ValueError:
            raise InvalidRequest("url: this is not a URL.") from None
        if parsed.scheme != "https":
            raise InvalidRequest("url: deliveries go by https alone.")
        if objection is None and addresses.is_numeric(parsed.host or ""):
            numeric = parsed.host or ""
            objection = None if self._is_allowed(numeric) else ("address_refused", addresses.NOT_PUBLIC)
        if objection is not None:
            raise InvalidRequest(f"url: {objection[1]}", code=objection[0])
        return parsed.with_fragment(None)

    def check_address(self, address: str) -> None:
        if not self._is_allowed(address):
            raise NotPublic

    def _is_allowed(self, address: str) -> bool:
        return address in self._unchecked or addresses.is_public(address)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Posted:
        """No redirect is followed: where it leads was not checked."""
        try:
            target = self.checked(url)
            async with (
                asyncio.timeout(settings.DELIVERY_TIMEOUT_SECONDS),
                self._session() as session,
                session.post(target, data=body, headers=headers, allow_redirects=False) as response,
            ):
                return Posted(
                    status=response.status, retry_after=response.headers.get("Retry-After", "")[:64]
                )
        except TimeoutError:
            return Posted(status=None, error="timeout")
        except (InvalidRequest, NotPublic):
            return Posted(status=None, error="address_refused")
        except (aiohttp.ClientError, OSError) as problem:
            refused = isinstance(problem.__cause__, NotPublic) or isinstance(problem, NotPublic)
            return Posted(status=None, error="address_refused" if refused else "unreachable")

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=_Resolver(self._resolver(), self),
            use_dns_cache=False,
            force_close=True,
            socket_factory=self._socket,
            ssl=self._trusts if self._trusts is not None else True,
        )
        return aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, auto_decompress=False
        )

    def _socket(self, info: AddressInfo) -> socket.socket:
        """The last look, at the very address that is connected to: numeric hosts meet no resolver."""
        family, kind, protocol, _, address = info
        self.check_address(str(address[0]))
        return socket.socket(family, kind, protocol)
