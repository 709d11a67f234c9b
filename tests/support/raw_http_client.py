"""A blocking client that writes bytes directly: it need not read, finish or follow the protocol."""

from __future__ import annotations

import base64
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests.support.timeouts import PATIENCE_SECONDS

CONTINUATION, TEXT, CLOSE, PING, PONG = 0, 1, 8, 9, 10
SMALL_BUFFER = 4_096  # small buffers for clients that do not read


def connect(site: str, *, buffer: int | None = None) -> socket.socket:
    address = urlsplit(site)
    line = socket.socket()
    if buffer is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    line.settimeout(PATIENCE_SECONDS)
    line.connect((address.hostname, address.port))
    return line


def is_cut(line: socket.socket) -> bool:
    """Tell whether the server has closed the connection, after reading the rest."""
    try:
        while line.recv(65_536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@dataclass(frozen=True)
class Closed:
    code: int
    reason: str


class RawSocket:
    """A WebSocket whose frames are written by the test."""

    def __init__(self, site: str, *, headers: dict[str, str], buffer: int | None = None) -> None:
        self.line = connect(site, buffer=buffer)
        host = urlsplit(site).netloc
        lines = [
            "GET /ws/ HTTP/1.1",
            f"Host: {host}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self.line.sendall("\r\n".join([*lines, "", ""]).encode())
        self._buffer = b""
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        assert b" 101 " in head.split(b"\r\n")[0], head

    def send(self, opcode: int, payload: bytes = b"", *, last: bool = True, times: int = 1) -> None:
        length = len(payload)
        if length < 126:
            size = bytes([0x80 | length])
        elif length < 65_536:
            size = bytes([0x80 | 126]) + struct.pack("!H", length)
        else:
            size = bytes([0x80 | 127]) + struct.pack("!Q", length)
        head = bytes([(0x80 if last else 0) | opcode]) + size
        self.line.sendall(
            (head + b"\0\0\0\0" + payload) * times
        )  # a mask of zeros leaves the payload unchanged

    def command(self, kind: str, **fields: object) -> None:
        self.send(TEXT, msgspec.json.encode({"kind": kind, **fields}))

    def frames(self) -> Iterator[dict[str, Any] | Closed]:
        """Read everything up to the close frame; a connection that ends without one is an error."""
        while True:
            while (frame := self._take()) is not None:
                opcode, payload = frame
                if opcode == CLOSE:
                    yield Closed(int.from_bytes(payload[:2], "big"), payload[2:].decode())
                    return
                if opcode == TEXT:
                    yield msgspec.json.decode(payload)
            self._buffer += self._more()

    def closed(self) -> Closed:
        """Return the server's close frame and skip everything before it."""
        *_, last = self.frames()
        assert isinstance(last, Closed)
        return last

    def until(self, *kinds: str) -> list[dict[str, Any]]:
        """Read everything up to the first frame of one of these kinds."""
        found: list[dict[str, Any]] = []
        for frame in self.frames():
            if isinstance(frame, Closed):
                raise AssertionError(f"the socket was closed: {frame}")
            found.append(frame)
            if not kinds or frame["kind"] in kinds:
                break
        return found

    def next(self, *kinds: str) -> dict[str, Any]:
        return self.until(*kinds)[-1]

    def close(self) -> None:
        self.line.close()

    def _more(self) -> bytes:
        data = self.line.recv(65_536)
        if not data:
            raise ConnectionError("the server ended the line")
        return data

    def _take(self) -> tuple[int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        length, start = buffer[1] & 127, 2
        if length == 126:
            length, start = int.from_bytes(buffer[2:4], "big"), 4
        elif length == 127:
            length, start = int.from_bytes(buffer[2:10], "big"), 10
        if len(buffer) < start + length:
            return None
        self._buffer = buffer[start + length :]
        return buffer[0] & 15, buffer[start : start + length]
