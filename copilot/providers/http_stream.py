"""Server-sent events out of raw bytes: chunks in, whole `data` payloads out."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Protocol

import aiohttp
import httpx2

from copilot.chat import turn_context
from copilot.providers import failures
from copilot.providers.base import ProviderFailure, StreamItem, TextDelta
from copilot.realtime import delta_clock

MAX_LINE_BYTES = 16 * 1024 * 1024  # a line that never ends must not eat the process's memory


class SSEReader:
    """Splits a byte stream into events. Event names, ids and comments are skipped: payloads say what they are."""

    __slots__ = ("_data", "_rest", "_rest_bytes")

    def __init__(self) -> None:
        self._data: list[bytes] = []  # data lines of the event under way
        self._rest: list[bytes] = []  # pieces of the line under way
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads that `chunk` completes."""
        lines = chunk.split(b"\n")
        last = lines.pop()
        if lines and self._rest:
            self._rest.append(lines[0])
            lines[0] = b"".join(self._rest)
            self._rest.clear()
            self._rest_bytes = 0
        if last:
            self._rest.append(last)
            self._rest_bytes += len(last)
            if self._rest_bytes > MAX_LINE_BYTES:
                raise ProviderFailure("malformed_stream", details="a line of the stream has no end")
        return self._payloads(lines)

    def flush(self) -> list[bytes]:
        """What an ended stream leaves: some servers omit the last blank line."""
        line = b"".join(self._rest)
        self._rest.clear()
        return self._payloads([line, b""])

    def _payloads(self, lines: list[bytes]) -> list[bytes]:
        found: list[bytes] = []
        data = self._data
        for line in lines:
            if line[-1:] == b"\r":
                line = line[:-1]
            if line[:6] == b"data: ":
                data.append(line[6:])
            elif not line:
                if data:
                    found.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
            elif line[:5] == b"data:":
                data.append(line[5:])
        return found


# MERGED providers.wire: The bytes of one reply off the wire: at once while it is awaited, then in draughts, to the beat of the log (T8.5).

_PLACEHOLDER_REQUEST = httpx2.Request("POST", "http://sent.invalid")


class ResponseStream:
    """One response. `read` gives what is there, and waits when nothing is; `rest` lets more come."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        response.request = (
            _PLACEHOLDER_REQUEST  # a reply lasts minutes, and nobody needs its request's body meanwhile
        )
        self._content = _find_raw_reader(response)
        self._chunks = _iterate_decoded(response) if self._content is None else None
        self._rests = delta_clock.get_beat_timer()
        self._resting: asyncio.Future[None] | None = None
        turn = turn_context.peek_turn_context()
        self._phase = delta_clock.get_phase(turn.turn_id if turn else "")
        if self._content is not None:
            self._content.on_eof(self._end_wait)

    async def read(self) -> bytes:
        """Empty at the end."""
        if self._chunks is not None:
            return await anext(self._chunks, b"")
        assert self._content is not None
        try:
            return await self._content.readany()
        except aiohttp.ClientError as error:
            if left := self._content._read_nowait(-1):
                return left  # it came before the connection broke, which the next read will tell
            if isinstance(error, TimeoutError):  # of the socket: not the reader's own patience
                raise httpx2.ReadTimeout(str(error)) from error
            raise

    async def wait_for_next_flush(self) -> None:
        """Until the log takes words again, or the reply is over."""
        if self._content is not None and not self._content.is_eof():
            self._resting = self._rests.next_beat(self._phase)
            await self._resting

    def _end_wait(self) -> None:
        if self._resting is not None and not self._resting.done():
            self._resting.set_result(None)

    async def aclose(self) -> None:
        if isinstance(self._chunks, AsyncGenerator):
            await self._chunks.aclose()
        await self._response.aclose()


def _find_raw_reader(response: httpx2.Response) -> aiohttp.StreamReader | None:
    """aiohttp's own reader below the SDK's layers, each of which costs a coroutine for every read; None if it is not there."""
    if not _is_uncompressed(response):
        return None
    transported = getattr(response.stream, "_stream", None)
    answer = getattr(transported, "_aiohttp_response", None)
    return answer.content if isinstance(answer, aiohttp.ClientResponse) else None


def _iterate_decoded(response: httpx2.Response) -> AsyncIterator[bytes]:
    """We ask for no compression, and undo it where it comes anyway."""
    if not _is_uncompressed(response):
        return response.aiter_bytes()
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    return response.stream.__aiter__()


def _is_uncompressed(response: httpx2.Response) -> bool:
    return response.headers.get("content-encoding", "identity") == "identity"


# MERGED providers.streaming: One streamed reply over HTTP: opened, read under time limits, decoded, and always closed (A5.2).

CONNECT_TIMEOUT_SECONDS = 10.0
IDLE_TIMEOUT_SECONDS = (
    630.0  # a backstop: the turn itself ends after 600 s of silence (T5.5) and should be first
)
AFTER_FINISH_SECONDS = 5.0  # how long usage may lag behind the finish reason
MAX_CONNECTIONS = 2000  # a process runs up to 400 turns, and side calls beside them
KEEP_ALIVE_SECONDS = 60.0

# The transport's own names blur what happened; aiohttp's, further down the chain, do not.
CONNECTION_ERRORS = (httpx2.ConnectError, aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
TRANSPORT_ERRORS = (httpx2.HTTPError, httpx2.StreamError, aiohttp.ClientError, OSError)


class ReplyDecoder(Protocol):
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

    def feed(self, payload: bytes) -> Sequence[StreamItem]: ...

    def end(self) -> Sequence[StreamItem]:
        """The last items; raises ProviderFailure when the stream ended too early."""
        ...


OpenResponse = Callable[[], Awaitable[httpx2.Response]]


def build_timeout(idle_seconds: float, connect_seconds: float) -> httpx2.Timeout:
    """The transport's limits; the first item has a limit of its own in `play`."""
    return httpx2.Timeout(idle_seconds, connect=connect_seconds)


def build_connection_limits() -> httpx2.Limits:
    return httpx2.Limits(
        max_connections=MAX_CONNECTIONS,
        max_keepalive_connections=MAX_CONNECTIONS,
        keepalive_expiry=KEEP_ALIVE_SECONDS,
    )


@cache
def load_ssl_context() -> ssl.SSLContext:
    """Whom all clients believe: to read the machine's certificates takes longer than all else a new client does."""
    return httpx2.create_ssl_context()


async def stream_reply(
    opened: OpenResponse, reply: ReplyDecoder, *, first_seconds: float
) -> AsyncGenerator[StreamItem, None]:
    """The items of one reply. Leaving it, by any way, closes the connection or gives it back."""
    reading = _ReadDeadlines(first_seconds)
    wire = ResponseStream(await reading.open(opened))
    del opened  # and the body with it
    reader = SSEReader()
    try:
        while chunk := await reading.read_chunk(wire, reply):
            for item in _decode_payloads(reply, reader.feed(chunk)):
                yield item
            if reply.started and not reply.finished:
                await wire.wait_for_next_flush()
        for item in _decode_payloads(reply, reader.flush()):
            yield item
        last = reply.end()
    except ProviderFailure as failure:
        failure.request_id = failure.request_id or reply.response_id
        raise
    finally:
        await wire.aclose()
    for item in last:
        yield item


def _decode_payloads(reply: ReplyDecoder, payloads: Iterable[bytes]) -> Iterator[StreamItem]:
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


def classify_failed_opening(error: Exception) -> ProviderFailure:
    """The request got no answer; that nothing was billed is sure only when no connection was made."""
    link: BaseException | None = error
    chain: list[BaseException] = []
    while link is not None:
        chain.append(link)
        link = link.__cause__
    unconnected = any(isinstance(cause, CONNECTION_ERRORS) for cause in chain)
    return failures.classify_connection_error(chain[-1], before_work=unconnected)


class _ReadDeadlines:
    """The patience of one reply: for its first item, between bytes, and after its finish reason."""

    __slots__ = ("_deadline", "_first_seconds")

    def __init__(self, first_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._deadline = asyncio.get_running_loop().time() + first_seconds

    async def open(self, opened: OpenResponse) -> httpx2.Response:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await opened()
        except TimeoutError as error:
            raise self._timeout_failure() from error

    async def read_chunk(self, wire: ResponseStream, reply: ReplyDecoder) -> bytes:
        """The next bytes; empty at the end."""
        try:
            if reply.started and not reply.finished:
                return await wire.read()
            until = self._deadline if not reply.finished else self._after_finish_deadline()
            async with asyncio.timeout_at(until):
                return await wire.read()
        except TimeoutError as error:
            if reply.finished:
                return b""
            raise self._timeout_failure() from error
        except TRANSPORT_ERRORS as error:
            if reply.finished:
                return b""
            raise failures.classify_connection_error(error, before_work=False) from error

    def _after_finish_deadline(self) -> float:
        return asyncio.get_running_loop().time() + AFTER_FINISH_SECONDS

    def _timeout_failure(self) -> ProviderFailure:
        return ProviderFailure("no_response", details=f"nothing came for {self._first_seconds:g} s")
