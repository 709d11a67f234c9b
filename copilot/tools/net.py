"""Fetches from the open internet: public addresses only, checked when connecting and at every redirect (A24.1)."""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from copilot import addresses
from copilot.addresses.connecting import Names, NotPublic, ResolverFactory, WayOut
from copilot.tools.base import ToolFailed

MAX_BYTES = 5 * 1024 * 1024  # of the body, after decompression
MAX_REDIRECTS = 5
TOTAL_SECONDS = 28.0  # of the tool's 30: the rest is for reading the page and naming what went wrong
CONNECT_SECONDS = 10.0
PORTS = frozenset({80, 443})
CHUNK_BYTES = 64 * 1024
HEADERS = {
    "User-Agent": "Pilothouse/1 (fetches one page at a user's request)",
    "Accept": "text/html,application/xhtml+xml,application/json,text/*;q=0.9,*/*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


@dataclass(frozen=True, kw_only=True)
class Fetched:
    url: str  # where the redirects led
    status: int
    content_type: str  # as the server said it, parameters included
    body: bytes = field(repr=False)
    cut: bool  # the body went on beyond the limit


class Client:
    """One way out. `unchecked` addresses and `resolver` exist for tests; no setting leads to them."""

    def __init__(
        self,
        *,
        ports: Collection[int] = PORTS,
        unchecked: Collection[str] = (),
        resolver: ResolverFactory = Names,
        total_seconds: float = TOTAL_SECONDS,
    ) -> None:
        self._ports = frozenset(ports)
        self._way_out = WayOut(unchecked=unchecked, resolver=resolver)
        self._total_seconds = total_seconds

    async def fetch(
        self, url: str, *, ask_first: Collection[str] = (), stay_on: Collection[str] = ()
    ) -> Fetched:
        """The resource behind `url`; raises ToolFailed in words the model can act on.

        Redirects lead to no host of `ask_first` that `url` does not name itself, and from a host of `stay_on` to
        nowhere else: what such a host forwards was not looked at.
        """
        try:
            async with asyncio.timeout(self._total_seconds), self._session() as session:
                return await self._follow(session, self._checked(url), ask_first, stay_on)
        except TimeoutError as problem:
            raise ToolFailed(
                "timeout", f"The server did not finish within {self._total_seconds:g} s."
            ) from problem
        except (aiohttp.ClientError, OSError) as problem:
            raise _named(problem) from problem

    async def addresses_of(self, url: str) -> tuple[str, ...]:
        """Where `url` leads, every address checked; for those who connect by themselves to one of exactly these."""
        try:
            checked = self._checked(url)
            if addresses.is_numeric(checked.host or ""):
                return (checked.host or "",)
            resolver = self._way_out.resolver()
            found = await resolver.resolve(checked.host or "", checked.port or 0)
        except OSError as problem:
            raise _named(problem) from problem
        await resolver.close()
        return tuple(result["host"] for result in found)

    async def _follow(
        self, session: aiohttp.ClientSession, url: URL, ask_first: Collection[str], stay_on: Collection[str]
    ) -> Fetched:
        asked, stays = addresses.belongs(url, ask_first), addresses.belongs(url, stay_on)
        for _ in range(MAX_REDIRECTS + 1):
            async with session.get(url, allow_redirects=False) as response:
                location = response.headers.get("Location", "")
                if response.status not in _REDIRECTS or not location:
                    return await _received(response, url)
                url = self._checked(location, base=url)
                if addresses.belongs(url, ask_first) not in {"", asked}:
                    raise ToolFailed("ask_first", f"It leads to {url.host}: fetch that address itself.")
                if stays and not addresses.belongs(url, stay_on):
                    raise ToolFailed("redirected", f"It leads to {url}: fetch that address itself.")
        raise ToolFailed("too_many_redirects", f"More than {MAX_REDIRECTS} redirects.")

    def _checked(self, text: str, base: URL | None = None) -> URL:
        """The URL that will be requested, parsed once: what is checked is what is used."""
        try:
            url = base.join(URL(text)) if base is not None else URL(text)
            objection = addresses.objection(url, self._ports)
        except ValueError as problem:
            raise ToolFailed("invalid_url", "This is not a URL.") from problem
        if objection is not None:
            raise ToolFailed(*objection)
        assert url.host is not None  # one without is objected to
        if addresses.is_numeric(url.host):
            self._way_out.check(url.host)
        return url.with_fragment(None)

    def _session(self) -> aiohttp.ClientSession:
        """No cookies, no credentials, no proxies of the environment; nothing outlives the call (A24.2)."""
        return aiohttp.ClientSession(
            connector=self._way_out.connector(),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=HEADERS,
            trust_env=False,
            auto_decompress=False,  # a bomb must be stopped while it goes off
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS),
            max_line_size=16_384,
            max_field_size=16_384,
        )


# --- receiving ---------------------------------------------------------------------------------------


async def _received(response: aiohttp.ClientResponse, url: URL) -> Fetched:
    body = bytearray()
    async for piece in _plain(response):
        body += piece
        if len(body) > MAX_BYTES:
            break
    return Fetched(
        url=str(url),
        status=response.status,
        content_type=response.headers.get("Content-Type", ""),
        body=bytes(body[:MAX_BYTES]),
        cut=len(body) > MAX_BYTES,
    )


async def _plain(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The decompressed body in pieces; however small the parcel, no piece is larger than a chunk."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            yield chunk
        return
    if encoding not in _WINDOWS:
        raise ToolFailed("unreadable", "The server answered in a compression that was not asked for.")
    inflater = _Inflater(_WINDOWS[encoding])
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        while piece := inflater.take(chunk):
            yield piece
            chunk = b""
        if inflater.finished:
            return  # zlib would keep what follows, and copy it with every piece


class _Inflater:
    """Undoes gzip or deflate piece by piece; servers that mean raw deflate are understood too."""

    def __init__(self, window: int) -> None:
        self._inflate = zlib.decompressobj(window)
        self._raw_allowed = window == zlib.MAX_WBITS

    @property
    def finished(self) -> bool:
        return self._inflate.eof

    def take(self, chunk: bytes) -> bytes:
        """The next piece; call with the rest (`b""`) until nothing comes."""
        pending = self._inflate.unconsumed_tail + chunk
        try:
            piece = self._inflate.decompress(pending, CHUNK_BYTES)
        except zlib.error as problem:
            if not self._raw_allowed:
                raise ToolFailed("unreadable", "The server's compressed answer is damaged.") from problem
            self._inflate, self._raw_allowed = zlib.decompressobj(-zlib.MAX_WBITS), False
            return self.take(pending)
        self._raw_allowed = False
        return piece


# --- naming what went wrong --------------------------------------------------------------------------


def _refused() -> ToolFailed:
    return ToolFailed("address_refused", addresses.NOT_PUBLIC)


def _named(problem: aiohttp.ClientError | OSError) -> ToolFailed:
    """One sentence per kind of failure; the library's own words may name inner addresses."""
    if _not_public(problem):
        return _refused()
    match problem:
        case aiohttp.InvalidURL():
            return ToolFailed("invalid_url", "This is not a URL of a host on the internet.")
        case aiohttp.ClientConnectorDNSError() | socket.gaierror():
            return ToolFailed("unreachable", "There is no host of this name.")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return ToolFailed("unreachable", "The server's certificate is not valid.")
        case aiohttp.ClientPayloadError() | aiohttp.ClientResponseError():
            return ToolFailed("unreadable", "The server's answer is damaged or breaks off.")
        case _:
            return ToolFailed("unreachable", "The server could not be reached, or it hung up.")


def _not_public(problem: BaseException | None) -> bool:
    while problem is not None:
        if isinstance(problem, NotPublic):
            return True
        problem = problem.__cause__ or problem.__context__
    return False
