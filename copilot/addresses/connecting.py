"""Connections to public addresses alone: what was checked is what is connected to (A24.1, L17)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from copilot import addresses

NAME_THREADS = 16  # what is slow to resolve holds up others of its kind, and no model's request
_threads = ThreadPoolExecutor(NAME_THREADS, thread_name_prefix="names")

AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


class NotPublic(OSError):
    """An address that must not be reached; an OSError, because that is what a resolver and a socket may raise."""


class ResolverFactory(Protocol):
    def __call__(self) -> AbstractResolver: ...


class Names(AbstractResolver):
    """The system's resolver, on threads that nobody else needs: whoever owns a name decides how long it takes."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await asyncio.get_running_loop().run_in_executor(_threads, _looked_up, host, port, family)
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(
                hostname=host, host=str(address[0]), port=port, family=kind, proto=protocol, flags=flags
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        return None


def _looked_up(host: str, port: int, family: socket.AddressFamily) -> Sequence[AddressInfo]:
    try:
        return socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except UnicodeError as problem:  # a part that is empty, or longer than the parts of names may be
        raise socket.gaierror(socket.EAI_NONAME, "no such name") from problem


class WayOut:
    """`unchecked` addresses and `resolver` exist for tests; no setting leads to them."""

    def __init__(self, *, unchecked: Collection[str] = (), resolver: ResolverFactory = Names) -> None:
        self._unchecked = frozenset(unchecked)
        self._resolver = resolver

    def check(self, address: str) -> None:
        if address not in self._unchecked and not addresses.is_public(address):
            raise NotPublic

    def resolver(self) -> AbstractResolver:
        return _Resolver(self._resolver(), self)

    def connector(self, **options: object) -> aiohttp.TCPConnector:
        """Nothing is remembered and nothing outlives the call (A24.2)."""
        return aiohttp.TCPConnector(
            resolver=self.resolver(),
            use_dns_cache=False,
            force_close=True,
            socket_factory=self._socket,
            **options,  # type: ignore[arg-type]
        )

    def _socket(self, info: AddressInfo) -> socket.socket:
        """The last look, at the very address that is connected to: numeric hosts meet no resolver."""
        family, kind, protocol, _, address = info
        self.check(str(address[0]))
        return socket.socket(family, kind, protocol)


class _Resolver(AbstractResolver):
    """Every address of a name must be public; the connection is then made to one of exactly these."""

    def __init__(self, inner: AbstractResolver, way_out: WayOut) -> None:
        self._inner = inner
        self._way_out = way_out

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, socket.AF_UNSPEC)
        for result in found:
            self._way_out.check(result["host"])
        return found

    async def close(self) -> None:
        await self._inner.close()
