"""Fetch from the public internet. Addresses are checked when connecting and at every redirect."""

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
TOTAL_TIMEOUT_SECONDS = 28.0  # of the tool's 30: the rest is for reading the page and reporting errors
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
    url: str  # after redirects
    status: int
    content_type: str  # as sent by the server, parameters included
    body: bytes = field(repr=False)
    cut: bool  # the body was longer than the limit


class PublicHttpClient:
    """An HTTP client for public addresses only. `unchecked` and `resolver` exist for tests; no setting reaches them."""

    def __init__(
        self,
        *,
        ports: Collection[int] = DEFAULT_PORTS,
        unchecked: Collection[str] = (),
        resolver: ResolverFactory = SystemResolver,
        total_seconds: float = TOTAL_TIMEOUT_SECONDS,
    ) -> None:
        self._ports = frozenset(ports)
        self._address_guard = PublicAddressGuard(unchecked=unchecked, resolver=resolver)
        self._total_seconds = total_seconds

    async def fetch(
        self, url: str, *, ask_first: Collection[str] = (), stay_on: Collection[str] = ()
    ) -> FetchedResource:
        """Fetch the resource at `url`. Raises ToolError in words the model can act on.

        Redirects never lead to a host of `ask_first` that `url` does not name itself, and never away from a
        host of `stay_on`: nobody has checked where such a host forwards to.
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
        """Resolve `url` to checked addresses, for callers that connect to exactly these by themselves."""
        try:
            checked = self._check_url(url)
            if url_safety.is_ip_address(checked.host or ""):
                return (checked.host or "",)
            resolver = self._address_guard.make_resolver()
            found = await resolver.resolve(checked.host or "", checked.port or 0)
        except OSError as problem:
            raise _to_tool_error(problem) from problem
        await resolver.close()
        return tuple(result["host"] for result in found)

    async def _follow_redirects(
        self, session: aiohttp.ClientSession, url: URL, ask_first: Collection[str], stay_on: Collection[str]
    ) -> FetchedResource:
        asked_host, trusted_host = url_safety.match_host(url, ask_first), url_safety.match_host(url, stay_on)
        for _ in range(MAX_REDIRECTS + 1):
            async with session.get(url, allow_redirects=False) as response:
                location = response.headers.get("Location", "")
                if response.status not in _REDIRECT_STATUSES or not location:
                    return await _read_response(response, url)
                url = self._check_url(location, base=url)
                if url_safety.match_host(url, ask_first) not in {"", asked_host}:
                    raise ToolError("ask_first", f"It leads to {url.host}: fetch that address itself.")
                if trusted_host and not url_safety.match_host(url, stay_on):
                    raise ToolError("redirected", f"It leads to {url}: fetch that address itself.")
        raise ToolError("too_many_redirects", f"More than {MAX_REDIRECTS} redirects.")

    def _check_url(self, text: str, base: URL | None = None) -> URL:
        """Parse and check the URL once, so that what is checked is what is requested."""
        try:
            url = base.join(URL(text)) if base is not None else URL(text)
            objection = url_safety.find_url_problem(url, self._ports)
        except ValueError as problem:
            raise ToolError("invalid_url", "This is not a URL.") from problem
        if objection is not None:
            raise ToolError(*objection)
        assert url.host is not None  # find_url_problem refuses a URL without a host
        if url_safety.is_ip_address(url.host):
            self._address_guard.check_address(url.host)
        return url.with_fragment(None)

    def _open_session(self) -> aiohttp.ClientSession:
        """Open a session without cookies, credentials or proxies of the environment."""
        return aiohttp.ClientSession(
            connector=self._address_guard.make_connector(),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=REQUEST_HEADERS,
            trust_env=False,
            auto_decompress=False,  # a decompression bomb must be stopped while it expands
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_SECONDS),
            max_line_size=16_384,
            max_field_size=16_384,
        )


# --- Responses ---------------------------------------------------------------------------------------


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
    """Yield the decompressed body in pieces of at most CHUNK_BYTES, however small the compressed input."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            yield chunk
        return
    if encoding not in _ZLIB_WINDOWS:
        raise ToolError("unreadable", "The server answered in a compression that was not requested.")
    inflater = _Decompressor(_ZLIB_WINDOWS[encoding])
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        while piece := inflater.read_piece(chunk):
            yield piece
            chunk = b""
        if inflater.is_finished:
            return  # zlib would keep what follows, and copy it with every piece


class _Decompressor:
    """Decompress gzip or deflate piece by piece, including raw deflate that some servers send."""

    def __init__(self, window: int) -> None:
        self._inflate = zlib.decompressobj(window)
        self._raw_allowed = window == zlib.MAX_WBITS

    @property
    def is_finished(self) -> bool:
        return self._inflate.eof

    def read_piece(self, chunk: bytes) -> bytes:
        """Return the next piece. Call it with b"" until nothing comes."""
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


# --- Errors ------------------------------------------------------------------------------------------


def _make_address_refused_error() -> ToolError:
    return ToolError("address_refused", url_safety.NOT_PUBLIC_MESSAGE)


def _to_tool_error(problem: aiohttp.ClientError | OSError) -> ToolError:
    """Describe each kind of failure in one sentence; the library's own messages may name internal addresses."""
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
