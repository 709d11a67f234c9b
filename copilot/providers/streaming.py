"""One streamed reply over HTTP: opened, read under time limits, decoded, and always closed (A5.2)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Protocol

import aiohttp
import httpx2

from copilot.providers import failures
from copilot.providers.base import Item, ProviderFailure, TextDelta
from copilot.providers.sse import EventReader
from copilot.providers.wire import Wire

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 630.0  # a backstop: the turn itself ends after 600 s of silence (T5.5) and should be first
LAST_WORDS_SECONDS = 5.0  # how long usage may lag behind the finish reason
MAX_CONNECTIONS = 2000  # a process runs up to 400 turns, and side calls beside them
KEEP_ALIVE_SECONDS = 60.0

# The transport's own names blur what happened; aiohttp's, further down the chain, do not.
NEVER_CONNECTED = (httpx2.ConnectError, aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
BROKEN = (httpx2.HTTPError, httpx2.StreamError, aiohttp.ClientError, OSError)


class Reply(Protocol):
    """A vendor's reply while it is decoded: payloads in, items out."""

    @property
    def response_id(self) -> str:
        """As the vendor names this reply, as soon as it has."""
        ...

    @property
    def started(self) -> bool:
        """Something was said; mere counts and pings are no beginning."""
        ...

    @property
    def finished(self) -> bool:
        """The vendor has said why it stopped; only last words can follow."""
        ...

    def feed(self, payload: bytes) -> Sequence[Item]: ...

    def end(self) -> Sequence[Item]:
        """The last items; raises ProviderFailure when the stream ended too early."""
        ...


Opener = Callable[[], Awaitable[httpx2.Response]]


def timeout(idle_seconds: float, connect_seconds: float) -> httpx2.Timeout:
    """The transport's limits; the first item has a limit of its own in `play`."""
    return httpx2.Timeout(idle_seconds, connect=connect_seconds)


def limits() -> httpx2.Limits:
    return httpx2.Limits(
        max_connections=MAX_CONNECTIONS,
        max_keepalive_connections=MAX_CONNECTIONS,
        keepalive_expiry=KEEP_ALIVE_SECONDS,
    )


@cache
def trusted() -> ssl.SSLContext:
    """Whom all clients believe: to read the machine's certificates takes longer than all else a new client does."""
    return httpx2.create_ssl_context()


async def play(opened: Opener, reply: Reply, *, first_seconds: float) -> AsyncGenerator[Item, None]:
    """The items of one reply. Leaving it, by any way, closes the connection or gives it back."""
    reading = _Reading(first_seconds)
    wire = Wire(await reading.open(opened))
    del opened  # and the body with it
    reader = EventReader()
    try:
        while chunk := await reading.next(wire, reply):
            for item in _joined(reply, reader.feed(chunk)):
                yield item
            if reply.started and not reply.finished:
                await wire.rest()
        for item in _joined(reply, reader.flush()):
            yield item
        last = reply.end()
    except ProviderFailure as failure:
        failure.request_id = failure.request_id or reply.response_id
        raise
    finally:
        await wire.aclose()
    for item in last:
        yield item


def _joined(reply: Reply, payloads: Iterable[bytes]) -> Iterator[Item]:
    """Words that came in one read go on as one: under load a read holds many, and each item costs its way."""
    words = ""
    try:
        for payload in payloads:
            for item in reply.feed(payload):
                if type(item) is TextDelta:
                    words += item.text
                    continue
                if words:
                    yield TextDelta(words)
                    words = ""
                yield item
    except ProviderFailure:
        if words:
            yield TextDelta(words)  # it was said before the stream broke
        raise
    if words:
        yield TextDelta(words)


def broken_opening(error: Exception) -> ProviderFailure:
    """The request got no answer; that nothing was billed is sure only when no connection was made."""
    link: BaseException | None = error
    chain: list[BaseException] = []
    while link is not None:
        chain.append(link)
        link = link.__cause__
    unconnected = any(isinstance(cause, NEVER_CONNECTED) for cause in chain)
    return failures.from_connection(chain[-1], before_work=unconnected)


class _Reading:
    """The patience of one reply: for its first item, between bytes, and after its finish reason."""

    __slots__ = ("_deadline", "_first_seconds")

    def __init__(self, first_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._deadline = asyncio.get_running_loop().time() + first_seconds

    async def open(self, opened: Opener) -> httpx2.Response:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await opened()
        except TimeoutError as error:
            raise self._silence() from error

    async def next(self, wire: Wire, reply: Reply) -> bytes:
        """The next bytes; empty at the end."""
        try:
            if reply.started and not reply.finished:
                return await wire.read()
            until = self._deadline if not reply.finished else self._last_words()
            async with asyncio.timeout_at(until):
                return await wire.read()
        except TimeoutError as error:
            if reply.finished:
                return b""
            raise self._silence() from error
        except BROKEN as error:
            if reply.finished:
                return b""
            raise failures.from_connection(error, before_work=False) from error

    def _last_words(self) -> float:
        return asyncio.get_running_loop().time() + LAST_WORDS_SECONDS

    def _silence(self) -> ProviderFailure:
        return ProviderFailure("no_response", details=f"nothing came for {self._first_seconds:g} s")
