"""Clients of the bench: WebSocket, event stream (SSE) and any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import aiohttp
import msgspec

from bench import wire
from bench.readings import Reading, now

ENDINGS = ("turn.succeeded", "turn.failed", "turn.cancelled")
PATIENCE_SECONDS = 120.0
_TOKEN = re.compile(rb"(\d+):(\d{10,})\s")


@dataclass(frozen=True)
class Target:
    """A server's address and credentials."""

    url: str  # without a trailing slash
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """Instructions for the fake provider, sent inside the message."""

    tokens: int = 20
    first_ms: float = 0
    gap_ms: float = 0
    more: dict[str, object] = field(default_factory=dict)

    @property
    def text(self) -> str:
        plan = {"tokens": self.tokens, "first_ms": self.first_ms, "gap_ms": self.gap_ms, "stamp": 1}
        return f"Please answer. fake:{json.dumps(plan | self.more)}"


class Client(Protocol):
    async def play(self, prompt: Prompt) -> Reading: ...

    async def close(self) -> None: ...


class Seen(msgspec.Struct):
    """The fields of an event that the bench reads; all others are skipped without decoding."""

    kind: str
    ref: int | None = None
    state: str = ""
    code: str = ""
    offset: int | None = None
    delta: str = ""


_decode = msgspec.json.Decoder(Seen).decode


class Following:
    """Turn a session's events into the reading of its current turn."""

    def __init__(self) -> None:
        self.reading = Reading()
        self.ended = asyncio.Event()
        self.first = asyncio.Event()
        self.prompt = Prompt()

    def begin(self, prompt: Prompt) -> Reading:
        self.prompt = prompt
        self.ended.clear()
        self.first.clear()
        self.reading = Reading()
        return self.reading

    def see(self, event: Seen, at: int) -> None:
        reading = self.reading
        reading.events += 1
        if event.kind == "text.extended":
            reading.extend(event.delta, event.offset, at)
            self.first.set()
        elif event.kind == "text.started":
            reading.length = 0
        elif event.kind == "turn.started":
            reading.started_at = reading.started_at or at
        elif event.kind == "turn.recovering":
            reading.recovering_at = reading.recovering_at or at
        elif event.kind in ENDINGS:
            whole = event.kind == "turn.succeeded" and not self.prompt.more
            reading.end(event.kind, at, tokens=self.prompt.tokens if whole else None)
            self.ended.set()

    def fail(self, problem: str) -> None:
        self.reading.problem = self.reading.problem or problem
        self.reading.end("error", now())
        self.ended.set()

    async def finished(self, seconds: float = PATIENCE_SECONDS) -> Reading:
        try:
            await asyncio.wait_for(self.ended.wait(), seconds)
        except TimeoutError:
            self.fail("no ending came")
        return self.reading


class SocketClient:
    """A browser's socket that follows one session."""

    def __init__(self, target: Target, session_id: str) -> None:
        self.target = target
        self.session_id = session_id
        self.following = Following()
        self.frames = 0
        self.deaf = False  # count events only, for hundreds of watchers
        self._refs = count(1)
        self._answers: dict[int, asyncio.Future[Seen]] = {}
        self._socket: wire.Socket | None = None

    async def open(self, *, cursor: str | None = None) -> SocketClient:
        """Connect and subscribe."""
        self._socket = await wire.connect(f"{self.target.url}/ws/", self.target.headers, self._receive)
        more = {"cursor": cursor} if cursor else {}
        await self.command("session.subscribe", session_id=self.session_id, **more)
        return self

    def _receive(self, payload: bytes, at: int) -> None:
        self.frames += 1
        if self.deaf:
            return
        event = _decode(payload)
        if event.kind in ("ack", "error"):
            self._answered(event, at)
        else:
            self.following.see(event, at)

    def _answered(self, event: Seen, at: int) -> None:
        waiting = self._answers.pop(event.ref or 0, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(event)
        if event.kind == "error":
            self.following.fail(event.code)
        elif not self.following.reading.accepted_at:
            self.following.reading.accepted_at = at
            self.following.reading.queued = event.state == "queued"

    def post(self, kind: str, **fields: object) -> asyncio.Future[Seen]:
        """Send a command; the future holds its response."""
        assert self._socket is not None
        ref = next(self._refs)
        answer: asyncio.Future[Seen] = asyncio.get_running_loop().create_future()
        self._answers[ref] = answer
        self._socket.send(msgspec.json.encode({"kind": kind, "ref": ref, **fields}))
        return answer

    async def command(self, kind: str, **fields: object) -> Seen:
        answer = await asyncio.wait_for(self.post(kind, **fields), PATIENCE_SECONDS)
        if answer.kind == "error":
            raise RuntimeError(f"{kind} was refused: {answer.code}")
        return answer

    def begin(self, prompt: Prompt) -> Reading:
        """Send a message without waiting; `following` reads the rest."""
        reading = self.following.begin(prompt)
        self.post("message.send", session_id=self.session_id, text=prompt.text)
        return reading

    async def play(self, prompt: Prompt) -> Reading:
        self.begin(prompt)
        return await self.following.finished()

    async def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


class SseClient:
    """Post a message and read its events from the session's event stream."""

    def __init__(self, target: Target, session_id: str, http: aiohttp.ClientSession) -> None:
        self.target = target
        self.following = Following()
        self._base = f"{target.url}/api/v1/sessions/{session_id}"
        self._http = http
        self._reader: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()

    async def open(self) -> SseClient:
        self._reader = asyncio.create_task(self._read())
        await asyncio.wait_for(self._listening.wait(), PATIENCE_SECONDS)
        return self

    async def _read(self) -> None:
        headers = {**self.target.headers, "Accept": "text/event-stream"}
        async with self._http.get(f"{self._base}/stream", headers=headers) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: "):
                    self._listening.set()
                    self.following.see(_decode(line[6:]), now())
        self.following.fail("the stream ended")

    async def play(self, prompt: Prompt) -> Reading:
        self.following.begin(prompt)
        async with self._http.post(
            f"{self._base}/messages", json={"text": prompt.text}, headers=self.target.headers
        ) as response:
            if response.status >= 400:
                self.following.fail(f"status {response.status}")
        return await self.following.finished()

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()


class NewChatClient(SocketClient):
    """Send every message as the first of a new session, so that a title is generated too."""

    def __init__(self, target: Target, session_ids: Sequence[str]) -> None:
        super().__init__(target, session_ids[0])
        self._unused = list(reversed(session_ids))

    async def play(self, prompt: Prompt) -> Reading:
        self.session_id = self._unused.pop()
        await self.command("session.subscribe", session_id=self.session_id)
        reading = await super().play(prompt)
        await self.command("session.unsubscribe", session_id=self.session_id)
        return reading


class StreamedAnswer(msgspec.Struct):
    """The fields of an event of another protocol that the bench reads."""

    type: str = ""
    delta: str = ""


_decode_answer = msgspec.json.Decoder(StreamedAnswer).decode


class EventStreamClient:
    """Post a message to an API that answers with a stream of typed events, and read the text deltas."""

    path: str
    delta_type: bytes  # searched before a line is decoded, because other events repeat the whole text

    def __init__(self, target: Target, http: aiohttp.ClientSession) -> None:
        self.target = target
        self._http = http

    def build_body(self, prompt: Prompt) -> dict[str, object]:
        raise NotImplementedError

    async def play(self, prompt: Prompt) -> Reading:
        reading, body = Reading(), self.build_body(prompt)
        async with self._http.post(
            f"{self.target.url}{self.path}", json=body, headers=self.target.headers
        ) as response:
            if response.status != 200:
                reading.problem = f"status {response.status}"
            async for line in response.content:
                if self.delta_type in line and line.startswith(b"data: "):
                    reading.extend(_decode_answer(line[6:]).delta, None, now())
        reading.end("error" if reading.problem else "turn.succeeded", now(), tokens=prompt.tokens)
        return reading

    async def close(self) -> None:
        return None


class ResponsesClient(EventStreamClient):
    path = "/v1/responses"
    delta_type = b"response.output_text.delta"

    def build_body(self, prompt: Prompt) -> dict[str, object]:
        return {"model": "standard", "stream": True, "store": False, "input": prompt.text}


class AiSdkClient(EventStreamClient):
    """The AI SDK's chat transport in one session."""

    path = "/api/ai/chat"
    delta_type = b"text-delta"

    def __init__(self, target: Target, session_id: str, http: aiohttp.ClientSession) -> None:
        super().__init__(target, http)
        self._session_id = session_id

    def build_body(self, prompt: Prompt) -> dict[str, object]:
        message = {"id": "1", "role": "user", "parts": [{"type": "text", "text": prompt.text}]}
        return {"id": self._session_id, "trigger": "submit-message", "messages": [message]}


class OpenAIClient:
    """Stream chat completions; `target.url` ends in /v1. Against the fake provider itself it is the baseline."""

    def __init__(self, target: Target, model: str, http: aiohttp.ClientSession) -> None:
        self.target = target
        self.model = model
        self._http = http

    async def play(self, prompt: Prompt) -> Reading:
        body = {"model": self.model, "stream": True, "messages": [{"role": "user", "content": prompt.text}]}
        reading = Reading()
        url = f"{self.target.url}/chat/completions"
        async with self._http.post(url, json=body, headers=self.target.headers) as response:
            if response.status != 200:
                reading.problem = f"status {response.status}"
            rest = b""
            async for chunk in response.content.iter_any():
                rest = self._take(rest + chunk, reading, now())
        reading.end("error" if reading.problem else "turn.succeeded", now(), tokens=prompt.tokens)
        return reading

    def _take(self, data: bytes, reading: Reading, at: int) -> bytes:
        """Find tokens without decoding JSON; an incomplete token is kept for the next chunk."""
        done = 0
        for found in _TOKEN.finditer(data):
            reading.first_at = reading.first_at or at
            reading.last_at = at
            reading.see(int(found[1]), int(found[2]), at)
            done = found.end()
        return data[done:][-64:]

    async def close(self) -> None:
        return None


def http_session() -> aiohttp.ClientSession:
    """Return one HTTP session for all clients of a process, without a connection limit."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        auto_decompress=False,
        read_bufsize=2**18,
    )
