"""Parse untrusted URLs and refuse addresses that are not public.

`urlsplit` raises for `https://[your-domain]/`, and its `port` raises for `:99999` only when it is read. Code that takes
URLs from people, models or headers calls `split_url` instead; a test of the tree enforces it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL


def split_url(text: str) -> SplitResult | None:
    """Return the parts of a URL with a readable port, or None for text that is no URL."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return None
    return parts


def get_host_and_port(text: str) -> str:
    """Return what an Origin or Referer header names, as a Host header would; empty if it names nothing."""
    parts = split_url(text)
    return parts.netloc if parts is not None else ""


# Python's own tables differ between patch releases, so the refused networks are spelled out (IANA's registries).
_REFUSED_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by carriers; clouds keep metadata there too
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's metadata, on a public number
        "169.254.0.0/16",  # link-local, and most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
# Only global unicast is public; mapped, compatible, NAT64, unique-local, link-local and multicast lie outside it.
_PUBLIC_V6 = IPv6Network("2000::/3")
_REFUSED_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
    )
)
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)  # tunnels that carry an IPv4 address in their last half

NOT_PUBLIC_MESSAGE = "Only public addresses of the internet are reached."
_LOCAL_NAMES = frozenset({"localhost", "metadata", "instance-data"})
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".intranet", ".lan", ".home.arpa", ".localdomain")


def is_public_address(address: str) -> bool:
    """Return True if a numeric address lies on the public internet; text that is no address does not."""
    try:
        number = ip_address(address)
    except ValueError:
        return False
    if isinstance(number, IPv4Address):
        return not any(number in network for network in _REFUSED_V4)
    return _is_public_ipv6(number)


def is_ip_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def parse_numeric_address(host: str) -> str:
    """Return the address that a host spells in numbers, in any spelling that the system's resolver reads, or None."""
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))  # 127.1, 0x7f000001: resolved without a name server
    except (OSError, UnicodeError):
        return ""


def is_valid_hostname(host: str) -> bool:
    """Return True if the form of a host name is valid: no part is empty or longer than 63 bytes."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def is_local_name(host: str) -> bool:
    """Return True for names of this machine, this network or a cloud's metadata, whatever they resolve to."""
    name = host.rstrip(".").lower()
    return name in _LOCAL_NAMES or name.endswith(_LOCAL_SUFFIXES)


def match_host(url: URL, names: Collection[str]) -> str:
    """Return the entry of `names` that the URL's host equals or is a subdomain of, or None."""
    host = (url.raw_host or "").rstrip(".")
    spelled = {name: URL.build(scheme="http", host=name).raw_host for name in names}
    return next((name for name, raw in spelled.items() if host == raw or host.endswith(f".{raw}")), "")


def find_url_problem(url: URL, ports: Collection[int]) -> tuple[str, str] | None:
    """Return why this URL must not be requested, as a code and a sentence. Its addresses are checked on connecting."""
    if url.scheme not in {"http", "https"} or not url.host:
        return "invalid_url", "Only http and https URLs with a host can be fetched."
    if url.user is not None or url.password is not None:
        return "invalid_url", "URLs with a user name or password are not fetched."
    if url.port not in ports:
        listed = ", ".join(str(port) for port in sorted(ports))
        return "address_refused", f"Only these ports are reached: {listed}; not {url.port}."
    return ("address_refused", NOT_PUBLIC_MESSAGE) if is_local_name(url.host) else None


def _is_public_ipv6(number: IPv6Address) -> bool:
    if number.scope_id is not None or number not in _PUBLIC_V6:
        return False
    if (int(number) >> 32) & 0xFFFF_FFFF in _ISATAP:
        return False
    return not any(number in network for network in _REFUSED_V6)


MAX_RESOLVER_THREADS = 64  # a slow look-up delays other look-ups, but no request to a model
LOOKUPS_PER_OWNER = 4  # at once in one process, so that an account with slow names leaves threads for others
LOOKUP_SECONDS = 10.0  # including the wait for a thread

AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


class AddressNotPublic(OSError):
    """Raised for a refused address. It is an OSError, because resolvers and sockets may raise only that."""


class ResolverFactory(Protocol):
    def __call__(self) -> AbstractResolver: ...


_owner: ContextVar[str] = ContextVar("lookup_owner", default="")


def count_lookups_for(owner: str) -> None:
    """Count the look-ups of the running task, and of the tasks it starts, as this account's."""
    _owner.set(owner)


AddressInfos = Sequence[AddressInfo]
_Lookup = tuple[Future[AddressInfos], Callable[[], AddressInfos]]


class LookupThreads:
    """Run look-ups on threads, a few at once for each owner; the owner's others wait in order.

    An abandoned look-up counts until it ends, because it cannot be stopped and keeps its thread until then.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_RESOLVER_THREADS, thread_name_prefix="names")
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Lookup]] = {}

    def submit(self, owner: str, look_up: Callable[[], AddressInfos]) -> Future[AddressInfos]:
        """Return the look-up's future. Without an owner it only waits for a thread."""
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
                future.set_exception(RuntimeError("The look-up broke off."))  # nobody waits forever
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
        """Take the owner's first look-up that is still awaited."""
        waiting = self._waiting.get(owner, deque())
        while waiting:
            lookup = waiting.popleft()
            if not lookup[0].cancelled():
                return lookup
        self._waiting.pop(owner, None)
        return None


_lookups = LookupThreads()


class SystemResolver(AbstractResolver):
    """Resolve on dedicated threads, because the owner of a name decides how long it takes."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        look_up = partial(_get_address_info, host, port, family)
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


def _get_address_info(host: str, port: int, family: socket.AddressFamily) -> AddressInfos:
    try:
        return socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except UnicodeError as problem:  # a part of the name is empty or too long
        raise socket.gaierror(socket.EAI_NONAME, "no such name") from problem


class PublicAddressGuard:
    """`unchecked` and `resolver` exist for tests; no setting uses them."""

    def __init__(
        self, *, unchecked: Collection[str] = (), resolver: ResolverFactory = SystemResolver
    ) -> None:
        self._unchecked = frozenset(unchecked)
        self._resolver = resolver

    def check_address(self, address: str) -> None:
        if address not in self._unchecked and not is_public_address(address):
            raise AddressNotPublic

    def make_resolver(self) -> AbstractResolver:
        return _PublicResolver(self._resolver(), self)

    def make_connector(self, **options: object) -> aiohttp.TCPConnector:
        """Create a connector that caches nothing and does not outlive the call."""
        return aiohttp.TCPConnector(
            resolver=self.make_resolver(),
            use_dns_cache=False,
            force_close=True,
            socket_factory=self._make_socket,
            **options,  # type: ignore[arg-type]
        )

    def _make_socket(self, info: AddressInfo) -> socket.socket:
        """Check the very address that is connected to; numeric hosts are never resolved."""
        family, kind, protocol, _, address = info
        self.check_address(str(address[0]))
        return socket.socket(family, kind, protocol)


class _PublicResolver(AbstractResolver):
    """Require every address of a name to be public; the connection is made to one of exactly these."""

    def __init__(self, inner: AbstractResolver, way_out: PublicAddressGuard) -> None:
        self._inner = inner
        self._way_out = way_out

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, socket.AF_UNSPEC)
        for result in found:
            self._way_out.check_address(result["host"])
        return found

    async def close(self) -> None:
        await self._inner.close()
