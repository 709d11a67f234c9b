"""A minimal WebSocket client; it shares the cores with what it measures, so it must be cheap."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from urllib.parse import urlsplit

from bench.readings import now

Receive = Callable[[bytes, int], None]  # a text frame and its time of arrival
OPEN_SECONDS = 30.0
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
_NO_MASK = b"\x00\x00\x00\x00"  # a valid mask that leaves the payload unchanged


class SocketClosed(Exception):
    """Raised when the server closed the connection."""


class Socket(asyncio.Protocol):
    """No compression, no fragments, no queue: frames go directly to `receive`."""

    def __init__(self, receive: Receive, request: bytes) -> None:
        self._receive = receive
        self._request = request
        self._buffer = b""
        self._opened = False
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.opened, self.closed):
            if not future.done():
                future.set_exception(SocketClosed(str(exc or "closed")))
                future.exception()  # marks it as retrieved

    def data_received(self, data: bytes) -> None:
        at = now()
        buffer = self._buffer + data if self._buffer else data
        if not self._opened:
            head, separator, buffer = buffer.partition(b"\r\n\r\n")
            if not separator:
                self._buffer = head
                return
            self._greet(head)
        self._buffer = self._frames(buffer, at)

    def _greet(self, head: bytes) -> None:
        self._opened = True
        status = head.split(b"\r\n", 1)[0]
        if b" 101 " in status + b" ":
            self.opened.set_result(None)
        else:
            self.opened.set_exception(SocketClosed(status.decode()))
            self.transport.close()

    def _frames(self, buffer: bytes, at: int) -> bytes:
        start, size = 0, len(buffer)
        while size - start >= 2:
            length, body = buffer[start + 1] & 127, start + 2
            if length == 126:
                length, body = int.from_bytes(buffer[body : body + 2], "big"), body + 2
            elif length == 127:
                length, body = int.from_bytes(buffer[body : body + 8], "big"), body + 8
            if size < body + length:
                break
            self._frame(buffer[start] & 15, buffer[body : body + length], at)
            start = body + length
        return buffer[start:]

    def _frame(self, kind: int, payload: bytes, at: int) -> None:
        if kind == TEXT:
            self._receive(payload, at)
        elif kind == PING:
            self._write(PONG, payload)
        elif kind == CLOSE:
            self.transport.close()

    def send(self, text: bytes) -> None:
        self._write(TEXT, text)

    def _write(self, kind: int, payload: bytes) -> None:
        length = len(payload)
        if length < 126:
            head = bytes((0x80 | kind, 0x80 | length))
        elif length < 65536:
            head = bytes((0x80 | kind, 0x80 | 126)) + length.to_bytes(2, "big")
        else:
            head = bytes((0x80 | kind, 0x80 | 127)) + length.to_bytes(8, "big")
        self.transport.write(head + _NO_MASK + payload)

    def close(self) -> None:
        self.transport.abort()


async def connect(url: str, headers: dict[str, str], receive: Receive) -> Socket:
    """Connect; `url` is http:// or ws:// with its path."""
    parts = urlsplit(url)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        "Sec-WebSocket-Version: 13",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    request = "\r\n".join([*lines, "", ""]).encode()
    _, socket = await asyncio.get_running_loop().create_connection(
        lambda: Socket(receive, request), parts.hostname or "", parts.port or 80
    )
    await asyncio.wait_for(socket.opened, OPEN_SECONDS)
    return socket
