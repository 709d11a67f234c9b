"""Fetches from the open internet: public addresses only, checked when connecting and at every redirect (A24.1)."""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from config.core import url_safety
from config.core.url_safety import AddressNotPublic, PublicAddressGuard, ResolverFactory, SystemResolver
from copilot.tools.base import ToolError

MAX_BODY_BYTES = 5 * 1024 * 1024  # of the body, after decompression
MAX_REDIRECTS = 5
TOTAL_TIMEOUT_SECONDS = 28.0  # of the tool's 30: the rest is for reading the page and naming what went wrong
CONNECT_TIMEOUT_SECONDS = 10.0
DEFAULT_PORTS = frozenset({80, 443})
CHUNK_BYTES = 64 * 1024
REQUEST_HEADERS = {
    "User-Agent": "Pilothouse/1 (fetches one page at a user's request)",
    "Accept": "text/html,application/xhtml+xml,application/json,text/*;q=0.9,*/*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}
_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_ZLIB_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


@dataclass(frozen=True, kw_only=True)
class FetchedResource:
    url: str  # where the redirects led
    status: int
    content_type: str  # as the server said it, parameters included
    body: bytes = field(repr=False)
    cut: bool  # the body went on beyond the limit


class PublicHttpClient:
    """One way out. `unchecked` addresses and `resolver` exist for tests; no setting leads to them."""

    def __init__(
        self,
        *,
        ports: Collection[int] = DEFAULT_PORTS,
        unchecked: Collection[str] = (),
        resolver: ResolverFactory = SystemResolver,
        total_seconds: float = TOTAL_TIMEOUT_SECONDS,
    ) -> None:
        self._ports = frozenset(ports)
        self._way_out = PublicAddressGuard(unchecked=unchecked, resolver=resolver)
        self._total_seconds = total_seconds

    async def fetch(
        self, url: str, *, ask_first: Collection[str] = (), stay_on: Collection[str] = ()
    ) -> FetchedResource:
        """The resource behind `url`; raises ToolFailed in words the model can act on.

        Redirects lead to no host of `ask_first` that `url` does not name itself, and from a host of `stay_on` to
        nowhere else: what such a host forwards was not looked at.
        """
        try:
            async with asyncio.timeout(self._total_seconds), self._open_session() as session:
                return await self._follow_redirects(session, self._check_url(url), ask_first, stay_on)
        except TimeoutError as problem:
            raise ToolError(
                "timeout", f"The server did not finish within {self._total_seconds:g} s."
            ) from problem
        except (aiohttp.ClientError, OSError) as problem:
            raise _to_tool_error(problem) from problem

    async def resolve_addresses(self, url: str) -> tuple[str, ...]:
        """Where `url` leads, every address checked; for those who connect by themselves to one of exactly these."""
        try:
            checked = self._check_url(url)
            if url_safety.is_ip_address(checked.host or ""):
                return (checked.host or "",)
            resolver = self._way_out.make_resolver()
            found = await resolver.resolve(checked.host or "", checked.port or 0)
        except OSError as problem:
            raise _to_tool_error(problem) from problem
        await resolver.close()
        return tuple(result["host"] for result in found)

    async def _follow_redirects(
        self, session: aiohttp.ClientSession, url: URL, ask_first: Collection[str], stay_on: Collection[str]
    ) -> FetchedResource:
        asked, stays = url_safety.match_host(url, ask_first), url_safety.match_host(url, stay_on)
        for _ in range(MAX_REDIRECTS + 1):
            async with session.get(url, allow_redirects=False) as response:
                location = response.headers.get("Location", "")
                if response.status not in _REDIRECT_STATUSES or not location:
                    return await _read_response(response, url)
                url = self._check_url(location, base=url)
                if url_safety.match_host(url, ask_first) not in {"", asked}:
                    raise ToolError("ask_first", f"It leads to {url.host}: fetch that address itself.")
                if stays and not url_safety.match_host(url, stay_on):
                    raise ToolError("redirected", f"It leads to {url}: fetch that address itself.")
        raise ToolError("too_many_redirects", f"More than {MAX_REDIRECTS} redirects.")

    def _check_url(self, text: str, base: URL | None = None) -> URL:
        """The URL that will be requested, parsed once: what is checked is what is used."""
        try:
            url = base.join(URL(text)) if base is not None else URL(text)
            objection = url_safety.find_url_problem(url, self._ports)
        except ValueError as problem:
            raise ToolError("invalid_url", "This is not a URL.") from problem
        if objection is not None:
            raise ToolError(*objection)
        assert url.host is not None  # one without is objected to
        if url_safety.is_ip_address(url.host):
            self._way_out.check_address(url.host)
        return url.with_fragment(None)

    def _open_session(self) -> aiohttp.ClientSession:
        """No cookies, no credentials, no proxies of the environment; nothing outlives the call (A24.2)."""
        return aiohttp.ClientSession(
            connector=self._way_out.make_connector(),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=REQUEST_HEADERS,
            trust_env=False,
            auto_decompress=False,  # a bomb must be stopped while it goes off
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_SECONDS),
            max_line_size=16_384,
            max_field_size=16_384,
        )


# --- receiving ---------------------------------------------------------------------------------------


async def _read_response(response: aiohttp.ClientResponse, url: URL) -> FetchedResource:
    body = bytearray()
    async for piece in _iter_decompressed(response):
        body += piece
        if len(body) > MAX_BODY_BYTES:
            break
    return FetchedResource(
        url=str(url),
        status=response.status,
        content_type=response.headers.get("Content-Type", ""),
        body=bytes(body[:MAX_BODY_BYTES]),
        cut=len(body) > MAX_BODY_BYTES,
    )


async def _iter_decompressed(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The decompressed body in pieces; however small the parcel, no piece is larger than a chunk."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            yield chunk
        return
    if encoding not in _ZLIB_WINDOWS:
        raise ToolError("unreadable", "The server answered in a compression that was not asked for.")
    inflater = _Decompressor(_ZLIB_WINDOWS[encoding])
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        while piece := inflater.read_piece(chunk):
            yield piece
            chunk = b""
        if inflater.is_finished:
            return  # zlib would keep what follows, and copy it with every piece


class _Decompressor:
    """Undoes gzip or deflate piece by piece; servers that mean raw deflate are understood too."""

    def __init__(self, window: int) -> None:
        self._inflate = zlib.decompressobj(window)
        self._raw_allowed = window == zlib.MAX_WBITS

    @property
    def is_finished(self) -> bool:
        return self._inflate.eof

    def read_piece(self, chunk: bytes) -> bytes:
        """The next piece; call with the rest (`b""`) until nothing comes."""
        pending = self._inflate.unconsumed_tail + chunk
        try:
            piece = self._inflate.decompress(pending, CHUNK_BYTES)
        except zlib.error as problem:
            if not self._raw_allowed:
                raise ToolError("unreadable", "The server's compressed answer is damaged.") from problem
            self._inflate, self._raw_allowed = zlib.decompressobj(-zlib.MAX_WBITS), False
            return self.read_piece(pending)
        self._raw_allowed = False
        return piece


# --- naming what went wrong --------------------------------------------------------------------------


def _make_address_refused_error() -> ToolError:
    return ToolError("address_refused", url_safety.NOT_PUBLIC_MESSAGE)


def _to_tool_error(problem: aiohttp.ClientError | OSError) -> ToolError:
    """One sentence per kind of failure; the library's own words may name inner addresses."""
    if _is_not_public(problem):
        return _make_address_refused_error()
    match problem:
        case aiohttp.InvalidURL():
            return ToolError("invalid_url", "This is not a URL of a host on the internet.")
        case aiohttp.ClientConnectorDNSError() | socket.gaierror():
            return ToolError("unreachable", "There is no host of this name.")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return ToolError("unreachable", "The server's certificate is not valid.")
        case aiohttp.ClientPayloadError() | aiohttp.ClientResponseError():
            return ToolError("unreadable", "The server's answer is damaged or breaks off.")
        case _:
            return ToolError("unreachable", "The server could not be reached, or it hung up.")


def _is_not_public(problem: BaseException | None) -> bool:
    while problem is not None:
        if isinstance(problem, AddressNotPublic):
            return True
        problem = problem.__cause__ or problem.__context__
    return False
