"""Read one streamed reply over HTTP: open it, read it under deadlines, decode its events and close it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Protocol, TypeVar

import aiohttp
import httpx2
import msgspec

from copilot.chat import turn_context
from copilot.providers import failures
from copilot.providers.base import ProviderFailure, StreamItem, TextDelta
from copilot.realtime import delta_clock

T = TypeVar("T")

MAX_LINE_BYTES = 16 * 1024 * 1024  # bounds the memory that an endless line can use


class SSEReader:
    """Split a byte stream into server-sent events. Names, ids and comments are skipped as redundant."""

    __slots__ = ("_data", "_rest", "_rest_bytes")

    def __init__(self) -> None:
        self._data: list[bytes] = []  # data lines of the current event
        self._rest: list[bytes] = []  # pieces of the current line
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
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
        """Return what an ended stream leaves, because some servers omit the last blank line."""
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


# --- The response body ---

_PLACEHOLDER_REQUEST = httpx2.Request("POST", "http://sent.invalid")


class ResponseStream:
    """Read one response: at once while its first text is awaited, then in step with the log flushes."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        response.request = _PLACEHOLDER_REQUEST  # frees the request body while the reply streams for minutes
        self._content = _find_raw_reader(response)
        self._chunks = _iterate_decoded(response) if self._content is None else None
        self._flush_timer = delta_clock.get_beat_timer()
        self._flush_wait: asyncio.Future[None] | None = None
        turn = turn_context.peek_turn_context()
        self._phase = delta_clock.get_phase(turn.turn_id if turn else "")
        if self._content is not None:
            self._content.on_eof(self._end_wait)

    async def read(self) -> bytes:
        """Return what has arrived, waiting if there is nothing; empty at the end."""
        if self._chunks is not None:
            return await anext(self._chunks, b"")
        assert self._content is not None
        try:
            return await self._content.readany()
        except aiohttp.ClientError as error:
            if left := self._content._read_nowait(-1):
                return left  # arrived before the connection broke, which the next read reports
            if isinstance(error, TimeoutError):  # the socket's timeout, not the reader's deadline
                raise httpx2.ReadTimeout(str(error)) from error
            raise

    async def wait_for_next_flush(self) -> None:
        """Wait until the event log is flushed again, or the reply is over."""
        if self._content is not None and not self._content.is_eof():
            self._flush_wait = self._flush_timer.next_beat(self._phase)
            await self._flush_wait

    def _end_wait(self) -> None:
        if self._flush_wait is not None and not self._flush_wait.done():
            self._flush_wait.set_result(None)

    async def aclose(self) -> None:
        if isinstance(self._chunks, AsyncGenerator):
            await self._chunks.aclose()
        await self._response.aclose()


def _find_raw_reader(response: httpx2.Response) -> aiohttp.StreamReader | None:
    """Find aiohttp's own reader below the SDK's layers, each of which costs a coroutine per read.

    Return None if it is not there.
    """
    if not _is_uncompressed(response):
        return None
    transported = getattr(response.stream, "_stream", None)
    answer = getattr(transported, "_aiohttp_response", None)
    return answer.content if isinstance(answer, aiohttp.ClientResponse) else None


def _iterate_decoded(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Decode a compressed response, although we ask for no compression."""
    if not _is_uncompressed(response):
        return response.aiter_bytes()
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    return response.stream.__aiter__()


def _is_uncompressed(response: httpx2.Response) -> bool:
    return response.headers.get("content-encoding", "identity") == "identity"


# --- One reply ---

CONNECT_TIMEOUT_SECONDS = 10.0
IDLE_TIMEOUT_SECONDS = 630.0  # a backstop: the turn itself should end first, after 600 s of silence
AFTER_FINISH_SECONDS = 5.0  # how long usage may arrive after the finish reason
MAX_CONNECTIONS = 2000  # a process runs up to 400 turns, and other calls besides
KEEP_ALIVE_SECONDS = 60.0

# The transport's own exceptions hide what happened; aiohttp's, further down the chain, do not.
CONNECTION_ERRORS = (httpx2.ConnectError, aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
TRANSPORT_ERRORS = (httpx2.HTTPError, httpx2.StreamError, aiohttp.ClientError, OSError)


class ReplyDecoder(Protocol):
    """Decode a vendor's reply: payloads in, items out."""

    @property
    def response_id(self) -> str: ...

    @property
    def started(self) -> bool:
        """Check for content; mere counts and pings are no beginning."""
        ...

    @property
    def finished(self) -> bool:
        """Check for a finish reason, after which little can follow."""
        ...

    def feed(self, payload: bytes) -> Sequence[StreamItem]: ...

    def end(self) -> Sequence[StreamItem]:
        """Return the last items, or raise ProviderFailure if the stream ended too early."""
        ...


OpenResponse = Callable[[], Awaitable[httpx2.Response]]


def build_timeout(idle_seconds: float, connect_seconds: float) -> httpx2.Timeout:
    """Build the transport's timeouts; `stream_reply` has a deadline of its own for the first item."""
    return httpx2.Timeout(idle_seconds, connect=connect_seconds)


def build_connection_limits() -> httpx2.Limits:
    return httpx2.Limits(
        max_connections=MAX_CONNECTIONS,
        max_keepalive_connections=MAX_CONNECTIONS,
        keepalive_expiry=KEEP_ALIVE_SECONDS,
    )


@cache
def load_ssl_context() -> ssl.SSLContext:
    """Load the machine's certificates once, which is the slowest part of creating a client."""
    return httpx2.create_ssl_context()


async def stream_reply(
    open_response: OpenResponse, reply: ReplyDecoder, *, first_seconds: float
) -> AsyncGenerator[StreamItem, None]:
    """Yield the items of one reply. Leaving the generator closes the connection or returns it to the pool."""
    deadlines = _ReadDeadlines(first_seconds)
    wire = ResponseStream(await deadlines.open(open_response))
    del open_response  # frees the body that it holds
    reader = SSEReader()
    try:
        while chunk := await deadlines.read_chunk(wire, reply):
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
    """Join text that arrived in one read, because each item has a cost and a busy read holds many."""
    text = ""
    try:
        for payload in payloads:
            for item in reply.feed(payload):
                if type(item) is TextDelta:
                    text += item.text
                    continue
                if text:
                    yield TextDelta(text)
                    text = ""
                yield item
    except ProviderFailure:
        if text:
            yield TextDelta(text)  # it arrived before the stream broke
        raise
    if text:
        yield TextDelta(text)


def decode_event(decoder: msgspec.json.Decoder[T], payload: bytes) -> T:
    try:
        return decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise ProviderFailure(
            "malformed_stream", details="an event of the stream could not be parsed"
        ) from error


def classify_failed_opening(error: Exception) -> ProviderFailure:
    """Classify a request without a response; nothing was billed for sure only if no connection was made."""
    link: BaseException | None = error
    chain: list[BaseException] = []
    while link is not None:
        chain.append(link)
        link = link.__cause__
    unconnected = any(isinstance(cause, CONNECTION_ERRORS) for cause in chain)
    return failures.classify_connection_error(chain[-1], before_work=unconnected)


class _ReadDeadlines:
    """Enforce the deadlines of one reply: for its first item, and after its finish reason."""

    __slots__ = ("_deadline", "_first_seconds")

    def __init__(self, first_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._deadline = asyncio.get_running_loop().time() + first_seconds

    async def open(self, open_response: OpenResponse) -> httpx2.Response:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await open_response()
        except TimeoutError as error:
            raise self._timeout_failure() from error

    async def read_chunk(self, wire: ResponseStream, reply: ReplyDecoder) -> bytes:
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
        return ProviderFailure("no_response", details=f"no data for {self._first_seconds:g} s")
