"""The bytes of one reply off the wire: at once while it is awaited, then in draughts, to the beat of the log (T8.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import aiohttp
import httpx2

from copilot import context, pacing

_SENT = httpx2.Request("POST", "http://sent.invalid")


class Wire:
    """One response. `read` gives what is there, and waits when nothing is; `rest` lets more come."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        response.request = _SENT  # a reply lasts minutes, and nobody needs its request's body meanwhile
        self._content = _undecoded(response)
        self._chunks = _decoded(response) if self._content is None else None
        self._rests = pacing.rests()
        self._resting: asyncio.Future[None] | None = None
        turn = context.peek()
        self._phase = pacing.phase_of(turn.turn_id if turn else "")
        if self._content is not None:
            self._content.on_eof(self._end_rest)

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

    async def rest(self) -> None:
        """Until the log takes words again, or the reply is over."""
        if self._content is not None and not self._content.is_eof():
            self._resting = self._rests.begin(self._phase)
            await self._resting

    def _end_rest(self) -> None:
        if self._resting is not None and not self._resting.done():
            self._resting.set_result(None)

    async def aclose(self) -> None:
        if isinstance(self._chunks, AsyncGenerator):
            await self._chunks.aclose()
        await self._response.aclose()


def _undecoded(response: httpx2.Response) -> aiohttp.StreamReader | None:
    """aiohttp's own reader below the SDK's layers, each of which costs a coroutine for every read; None if it is not there."""
    if not _is_plain(response):
        return None
    transported = getattr(response.stream, "_stream", None)
    answer = getattr(transported, "_aiohttp_response", None)
    return answer.content if isinstance(answer, aiohttp.ClientResponse) else None


def _decoded(response: httpx2.Response) -> AsyncIterator[bytes]:
    """We ask for no compression, and undo it where it comes anyway."""
    if not _is_plain(response):
        return response.aiter_bytes()
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    return response.stream.__aiter__()


def _is_plain(response: httpx2.Response) -> bool:
    return response.headers.get("content-encoding", "identity") == "identity"
