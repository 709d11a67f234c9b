"""Run the web process: uvicorn with its lightest parts, and a drain before the socket closes."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable
from types import FrameType
from typing import Any

import structlog
import uvicorn
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from config import variables
from diagnostics.probes import runner

log = structlog.get_logger(__name__)

MAX_HEADER_BYTES = 64 * 1024  # a request line and its headers; browsers and proxies stop at 8 to 32 KB
MAX_HEADERS = 200
CHUNK_OVERHEAD_BYTES = 16  # bytes around each byte of a chunked body: a chunk of one byte takes six
MAX_PIPELINED_REQUESTS = 16
HEADER_TIMEOUT_SECONDS = 15.0  # a slow line needs seconds for a request line and its headers
UNREAD_OUTPUT_TIMEOUT_SECONDS = 30.0
MAX_WAITING_PER_ADDRESS = 500  # connections that wait for their first or next request
IS_BEHIND_PROXY = variables.TRUST_PROXY  # all connections come from the proxy, which bounds them itself
CLOSE_TIMEOUT_SECONDS = 10.0  # for the client to read the rest after our close

MAX_CONTROL_FRAMES, CONTROL_FRAME_WINDOW_SECONDS = (
    60,
    10.0,
)  # pings and pongs of one socket; a browser sends one every 30 s
MAX_FRAGMENTS = 1_000  # of one message; a browser sends a handful
MAX_WAITING_FRAMES = 128  # received and not yet taken by the consumer, which allows 60 commands in 10 s
ABUSE_CLOSE_CODE = 4008


class HeadersTooLarge(Exception):
    """Raised inside a parser callback; the parser turns it into a refusal of the request."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """HTTP protocol with limits on the size, number and time of headers."""

    waiting_since: float | None = None  # for the headers of the next request
    received_bytes = 0  # of the current request
    body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waiting_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        super().data_received(data)
        if self.received_bytes > MAX_HEADER_BYTES + self.body_bytes * (1 + CHUNK_OVERHEAD_BYTES):
            self._refuse_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.received_bytes = self.body_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            raise HeadersTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED_REQUESTS:
            raise HeadersTooLarge
        self.waiting_since = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.body_bytes += len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self.waiting_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Respond 400 unless a response has begun, and tell requests that still run that the client is gone."""
        if self._is_responding():
            self.transport.close()
        else:
            super().send_400_response(msg)
        self._abandon_responses()

    def _refuse_headers(self) -> None:
        if self.transport.is_closing():
            return
        if not self._is_responding():
            self.transport.write(STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()
        self._abandon_responses()

    def _is_responding(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _abandon_responses(self) -> None:
        """Abandon running responses. uvicorn would write them to the closed connection and log an error for each."""
        cycle: RequestResponseCycle | None = self.cycle
        for waiting in (cycle, *(one for one, _ in self.pipeline)):
            if waiting is not None:
                waiting.disconnected = True
                waiting.message_event.set()
        self.pipeline.clear()


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket protocol with limits on control frames, fragments and waiting messages, and on the time to close."""

    control_count = 0  # on the class, so that an idle socket needs no attribute
    control_since = 0.0

    def handle_ping(self) -> None:
        if self._count_control_frame():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        if self._count_control_frame():
            super().handle_pong(event)

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAGMENTS:
            self._close_for_abuse("too_many_fragments")
        elif not self.close_sent:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        if self.queue.qsize() >= MAX_WAITING_FRAMES and not self.close_sent:
            self.frames = []
            self._close_for_abuse("too_many_requests")
        else:
            super().send_receive_event_to_app()

    async def send(self, message: ASGISendEvent) -> None:
        """Send a close frame ahead of unread output; the rest follows it, or the connection is cut."""
        if self.close_sent:
            raise ClientDisconnected
        if message["type"] == "websocket.close":
            self.writable.set()
        await super().send(message)
        if message["type"] == "websocket.accept":
            del self.request, self.response  # kilobytes of headers that an open socket does not need

    def _count_control_frame(self) -> bool:
        if self.close_sent:
            self.conn.data_to_send()
            return False
        now = self.loop.time()
        if now - self.control_since > CONTROL_FRAME_WINDOW_SECONDS:
            self.control_since, self.control_count = now, 0
        self.control_count += 1
        if self.control_count > MAX_CONTROL_FRAMES:
            self._close_for_abuse("too_many_pings")
            return False
        return True

    def _close_for_abuse(self, reason: str) -> None:
        self.conn.data_to_send()  # discard the pending answers to pings
        self.queue.put_nowait({"type": "websocket.disconnect", "code": ABUSE_CLOSE_CODE, "reason": reason})
        self.conn.fail(ABUSE_CLOSE_CODE, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()


class StalledConnectionWatch:
    """Cut connections whose headers do not arrive, that crowd one address, or whose output is not read.

    It checks all connections once a second and remembers only the stalled ones.
    """

    def __init__(self) -> None:
        self._stalled: dict[Any, tuple[int, float]] = {}  # by connection: unread bytes, and since when

    def cut_stalled(self, connections: Iterable[Any], now: float) -> int:
        """Cut stalled connections and return their number."""
        stalled: dict[Any, tuple[int, float]] = {}
        waiting: Counter[str] = Counter()
        cut = 0
        for connection in tuple(connections):
            transport: asyncio.Transport = connection.transport
            waiting_since = getattr(connection, "waiting_since", None)
            if waiting_since is not None:
                address = connection.client[0] if connection.client else ""
                waiting[address] += 1
                is_crowd = waiting[address] > MAX_WAITING_PER_ADDRESS and not IS_BEHIND_PROXY
                if is_crowd or now - waiting_since > HEADER_TIMEOUT_SECONDS:
                    transport.abort()
                    cut += 1
                    continue
            left = transport.get_write_buffer_size()
            if not left:
                continue
            before, since = self._stalled.get(connection, (left, now))
            is_closing = transport.is_closing()
            if left < before and not is_closing:
                since = now
            if now - since > (CLOSE_TIMEOUT_SECONDS if is_closing else UNREAD_OUTPUT_TIMEOUT_SECONDS):
                transport.abort()
                cut += 1
            else:
                stalled[connection] = (left, since)
        self._stalled = stalled
        if cut:
            log.info("connections_cut", count=cut)
        return cut


MAX_FRAME_BYTES = (
    1024 * 1024
)  # above the protocol's limit of 256 KB, so that the consumer can answer before it closes
SHUTDOWN_TIMEOUT_SECONDS = 5
CONNECTION_CHECK_TICKS = 10  # of uvicorn's tenths of a second
PING_INTERVAL_SECONDS = 30.0  # shorter than the minute after which proxies and phones drop an idle connection


class DrainingServer(uvicorn.Server):
    """On SIGTERM report "not ready" for a while first, so that load balancers send requests elsewhere."""

    def __init__(self, config: uvicorn.Config, *, drain_seconds: float) -> None:
        super().__init__(config)
        self.drain_seconds = drain_seconds
        self.exits_at: float | None = None
        self._connection_watch = StalledConnectionWatch()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        from diagnostics import loops  # its models can be imported once the application is loaded

        loops.start_loops(loops.WEB)  # alerts still go out if every worker is gone
        gc.collect()
        gc.freeze()  # loaded code stays, so the collector only has to look at sockets

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        runner.start_draining()
        if self.exits_at is None and sig == signal.SIGTERM and self.drain_seconds:
            self.exits_at = time.monotonic() + self.drain_seconds
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if counter % CONNECTION_CHECK_TICKS == 0:
            self._connection_watch.cut_stalled(
                self.server_state.connections, asyncio.get_running_loop().time()
            )
        drained = self.exits_at is not None and time.monotonic() >= self.exits_at
        return drained or await super().on_tick(counter)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m config.http.web_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args(arguments)
    server = DrainingServer(
        uvicorn.Config(
            "config.asgi:application",
            host=options.host,
            port=options.port,
            loop="uvloop",
            http=BoundedHttpProtocol,
            ws=BoundedWebSocketProtocol,  # 8 KB less per socket than the older protocol
            ws_max_size=MAX_FRAME_BYTES,
            ws_ping_interval=PING_INTERVAL_SECONDS,
            ws_ping_timeout=PING_INTERVAL_SECONDS,
            ws_per_message_deflate=False,  # 34 KB per socket, and CPU on every delta
            lifespan="off",
            log_config=None,  # Django's LOGGING applies
            access_log=False,
            server_header=False,
            proxy_headers=False,  # config.http.handler handles them
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_SECONDS,
        ),
        drain_seconds=variables.WEB_DRAIN_SECONDS,
    )
    server.run()


if __name__ == "__main__":
    main(sys.argv[1:])
