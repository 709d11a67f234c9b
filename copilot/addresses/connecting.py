"""Connections to public addresses alone: what was checked is what is connected to (A24.1, L17)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Protocol

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from copilot import addresses

NAME_THREADS = 64  # what is slow to resolve holds up others of its kind, and no model's request
LOOKUPS_PER_OWNER = 4  # at once in one process: an account with slow names leaves threads to the others
LOOKUP_SECONDS = 10.0  # with the wait for a thread

AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


class NotPublic(OSError):
    """An address that must not be reached; an OSError, because that is what a resolver and a socket may raise."""


class ResolverFactory(Protocol):
    def __call__(self) -> AbstractResolver: ...


_owner: ContextVar[str] = ContextVar("lookup_owner", default="")


def count_lookups_for(owner: str) -> None:
    """Count the look-ups of the running task, and of the tasks it starts, as this account's."""
    _owner.set(owner)


AddressInfos = Sequence[AddressInfo]
_Lookup = tuple[Future[AddressInfos], Callable[[], AddressInfos]]


class LookupThreads:
    """Run look-ups on threads, a few at once for each owner; its others wait in their order.

    A look-up that nobody awaits any more counts until it ends: it cannot be stopped, and has its thread until then.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NAME_THREADS, thread_name_prefix="names")
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Lookup]] = {}

    def submit(self, owner: str, look_up: Callable[[], AddressInfos]) -> Future[AddressInfos]:
        """Return its future; without an owner it waits for nobody but a thread."""
        lookup: _Lookup = (Future(), look_up)
        with self._lock:
            if owner and self._running[owner] >= LOOKUPS_PER_OWNER:
                self._waiting.setdefault(owner, deque()).append(lookup)
                return lookup[0]
            self._running[owner] += 1
        self._threads.submit(self._run, owner, lookup)
        return lookup[0]

    def _run(self, owner: str, lookup: _Lookup) -> None:
        future, look_up = lookup
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(look_up())
        except (OSError, ValueError) as problem:
            future.set_exception(problem)
        finally:
            if not future.done():
                future.set_exception(RuntimeError("The look-up broke off."))  # whoever awaits it is told
            self._start_next(owner)

    def _start_next(self, owner: str) -> None:
        with self._lock:
            following = self._next_of(owner)
            if following is None:
                self._running[owner] -= 1
                if not self._running[owner]:
                    del self._running[owner]
                return
        self._threads.submit(self._run, owner, following)

    def _next_of(self, owner: str) -> _Lookup | None:
        """Take the owner's first that is still awaited."""
        waiting = self._waiting.get(owner, deque())
        while waiting:
            lookup = waiting.popleft()
            if not lookup[0].cancelled():
                return lookup
        self._waiting.pop(owner, None)
        return None


_lookups = LookupThreads()


class Names(AbstractResolver):
    """The system's resolver, on threads that nobody else needs: whoever owns a name decides how long it takes."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        look_up = partial(_looked_up, host, port, family)
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                found = await asyncio.wrap_future(_lookups.submit(_owner.get(), look_up))
        except TimeoutError as problem:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer in time") from problem
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(
                hostname=host, host=str(address[0]), port=port, family=kind, proto=protocol, flags=flags
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        return None


def _looked_up(host: str, port: int, family: socket.AddressFamily) -> AddressInfos:
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
