"""A fake model provider: paced tokens over real SSE, in a separate process.

    python -m bench.fake_provider --port 0 [--uds PATH]      prints {"port": …} once it listens

Behaviour is chosen per request: by the model's name (`fake:tokens=100,gap_ms=10,first_ms=50,stamp=1`) and,
overriding it, by `fake:{…}` in the last user message; the fields are those of `fake_plan.Plan`.
Tokens are written by timer callbacks, not coroutines, because the baseline must cost little itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections import Counter, deque
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httptools

from bench.fake_dialects import DIALECTS, Dialect
from bench.fake_plan import Plan, plan_for

EVENT_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"x-request-id: %b\r\nrequest-id: %b\r\ntransfer-encoding: chunked\r\n\r\n"
)
BATCH = 64  # unpaced tokens per iteration of the event loop


class State:
    """Counters and recorded requests of the process."""

    def __init__(self) -> None:
        self.tokens = 0
        self.requests = 0
        self.open_streams = 0
        self.disconnects = 0  # the client disconnected before the reply ended
        self.failures: Counter[str] = Counter()
        self.recorded: deque[tuple[str, bytes]] = deque(maxlen=2000)

    def stats(self) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "tokens": self.tokens,
            "requests": self.requests,
            "cpu_seconds": used.ru_utime + used.ru_stime,
            "open_streams": self.open_streams,
            "disconnects": self.disconnects,
        }


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Stream:
    """Send one reply by timer callbacks at absolute times, so that it never drifts."""

    def __init__(self, connection: Connection, dialect: Dialect, plan: Plan, prompt_tokens: int) -> None:
        self.connection = connection
        self.dialect = dialect
        self.plan = plan
        self.prompt_tokens = prompt_tokens
        self.thoughts = plan.thinking if plan.start == 0 else 0
        self.total = self.thoughts + (0 if plan.tools else max(plan.tokens - plan.start, 0))
        self.lead = plan.lead.encode()
        self.done = 0
        self.loop = asyncio.get_running_loop()
        self.started = self.loop.time() + plan.first_ms / 1000
        self.timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self.paused = False
        faults = (plan.cut_after, plan.reset_after, plan.garbage_after, plan.silent_after)
        self.limit = min((n for n in faults if n >= 0), default=-1)

    def begin(self) -> None:
        name = self.dialect.id.encode()
        self.connection.write(EVENT_STREAM % (name, name))
        self.opening = self.dialect.begin()
        self.timer = self.loop.call_at(self.started, self.tick)

    def close(self) -> None:
        if self.timer:
            self.timer.cancel()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.timer = self.loop.call_soon(self.tick)

    def tick(self) -> None:
        if self.opening:
            self.connection.write(chunked(self.opening))
            self.opening = b""
        gap = self.plan.gap_ms / 1000
        due = self.done + BATCH
        if gap:
            due = 1 + int((self.loop.time() - self.started) / gap + 1e-6)
        stop = self.total if self.limit < 0 else min(self.limit, self.total)
        due = min(due, stop)
        if due > self.done:
            self.connection.write(b"".join([self.token(i) for i in range(self.done, due)]))
            self.connection.state.tokens += due - self.done
            self.done = due
        if self.done >= stop:
            self.finish()
        elif self.connection.choked:
            self.paused = True
        elif gap:
            self.timer = self.loop.call_at(self.started + self.done * gap, self.tick)
        else:
            self.timer = self.loop.call_soon(self.tick)

    def token(self, number: int) -> bytes:
        if number < self.thoughts:
            return chunked(self.dialect.thought(b"r%d " % number))
        index = number - self.thoughts + self.plan.start
        lead = self.lead if number == self.thoughts else b""
        if self.plan.stamp:
            return chunked(self.dialect.text(b"%b%d:%d " % (lead, index, time.monotonic_ns())))
        return chunked(self.dialect.text(b"%bt%d " % (lead, index)))

    def finish(self) -> None:
        plan = self.plan
        if self.limit >= 0 and self.limit == plan.silent_after:
            return  # stops sending and keeps the connection open
        if self.limit >= 0 and self.limit == plan.reset_after:
            self.connection.abort()
            return
        if self.limit >= 0 and self.limit == plan.garbage_after:
            self.connection.write(chunked(b'data: {"choices": [{"delta": {"conte\n\n'))
        elif self.limit < 0:
            events = self.dialect.end(self.prompt_tokens, self.total)
            self.connection.write(b"".join([chunked(event) for event in events if event]))
        self.connection.write(b"0\r\n\r\n")
        self.connection.stream_ended()


class Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, one request at a time."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.stream: Stream | None = None
        self.choked = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.write = transport.write
        self.abort = transport.abort
        self.parser = httptools.HttpRequestParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.stream:
            self.state.disconnects += 1
            self._drop()

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()

    def pause_writing(self) -> None:
        self.choked = True

    def resume_writing(self) -> None:
        self.choked = False
        if self.stream:
            self.stream.resume()

    # --- httptools' callbacks ---
    def on_message_begin(self) -> None:
        self.url = b""
        self.body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        parts = urlsplit(self.url.decode())
        if self.parser.get_method() == b"GET":
            self.answer(200, self._looked_up(parts.path, parts.query))
        elif parts.path in DIALECTS:
            self._reply(parts.path, b"".join(self.body))
        else:
            self.answer(404, {"error": {"message": "no such path", "type": "not_found_error"}})

    # --- answers ---
    def _looked_up(self, path: str, query: str) -> object:
        if path == "/stats":
            return self.state.stats()
        if path == "/requests":
            last = int(parse_qs(query).get("last", ["100"])[0])
            recorded = list(self.state.recorded)[-last:]
            return [{"path": p, "body": json.loads(b)} for p, b in recorded]
        return {
            "object": "list",
            "data": [{"id": "fake", "object": "model", "created": 1, "owned_by": "bench"}],
        }

    def _reply(self, path: str, raw: bytes) -> None:
        self.state.requests += 1
        self.state.recorded.append((path, raw))
        body = json.loads(raw)
        dialect_class = DIALECTS[path]
        conversation = dialect_class.read(body)
        plan = plan_for(conversation)
        if plan.fails and plan.fail_times >= 0:
            key = conversation.model + next((t.text for t in conversation.turns if t.role == "user"), "")
            self.state.failures[key] += 1
            if self.state.failures[key] > plan.fail_times:
                plan = _healthy(plan)
        if plan.status != 200:
            self._fail(plan)
        elif not plan.hang:
            self._start(dialect_class(conversation.model, plan), plan, len(raw) // 4)
        else:
            self._start(None, plan, 0)

    def _start(self, dialect: Dialect | None, plan: Plan, prompt_tokens: int) -> None:
        self.state.open_streams += 1
        self.stream = Stream(self, dialect, plan, prompt_tokens) if dialect else _Silent()
        self.stream.begin()

    def _fail(self, plan: Plan) -> None:
        message = plan.body or f"the fake provider answers {plan.status}"
        error = {"type": "error", "error": {"type": "fake_error", "message": message, "code": None}}
        headers = f"retry-after: {plan.retry_after}\r\n" if plan.retry_after else ""
        self.answer(plan.status, error, headers)

    def answer(self, status: int, value: object, headers: str = "") -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}\r\n\r\n"
        self.write(head.encode() + body)

    def stream_ended(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if self.stream:
            self.stream.close()
            self.stream = None
            self.state.open_streams -= 1


class _Silent(Stream):
    """Accept the request and never respond."""

    def __init__(self) -> None:
        self.timer = None

    def begin(self) -> None: ...

    def resume(self) -> None: ...


def _healthy(plan: Plan) -> Plan:
    return replace(
        plan, status=200, hang=False, cut_after=-1, reset_after=-1, garbage_after=-1, silent_after=-1
    )


async def serve(port: int, uds: str = "") -> None:
    loop = asyncio.get_running_loop()
    state = State()
    if uds:
        server: asyncio.AbstractServer = await loop.create_unix_server(lambda: Connection(state), uds)
        where: dict[str, object] = {"uds": uds}
    else:
        server = await loop.create_server(lambda: Connection(state), "127.0.0.1", port, backlog=1024)
        where = {"port": server.sockets[0].getsockname()[1]}
    print(json.dumps(where), flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--port", type=int, default=0)
    arguments.add_argument("--uds", default="")
    options = arguments.parse_args()
    try:
        import uvloop

        uvloop.run(serve(options.port, options.uds))
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
