"""What goes wrong on the way, as asked for: each fault hits the next matching calls and is gone."""

from __future__ import annotations

import select
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Literal

FaultKind = Literal[
    "error",  # 500 before anything happened; trying again helps
    "stored_error",  # 500 that is kept under the idempotency key and comes again
    "limit",  # 429
    "unauthorised",  # 401
    "declined",  # 402: the bank refused at once, and nothing happened
    "hang",  # no answer, and nothing happened
    "hang_after",  # no answer, and it did happen
    "drip",  # an answer that begins and never ends, and nothing happened
    "reset",  # the connection breaks, and nothing happened
    "reset_after",  # the connection breaks, and it did happen
]


@dataclass(kw_only=True)
class Fault:
    kind: FaultKind
    method: str
    path: str  # how it begins
    times: int
    after: int  # this many such calls are spared first


class Faults:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Fault] = []

    def add(
        self, kind: FaultKind, method: str = "", path: str = "", *, times: int = 1, after: int = 0
    ) -> None:
        with self._lock:
            self._waiting.append(Fault(kind=kind, method=method, path=path, times=times, after=after))

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()

    def next_for(self, method: str, path: str) -> FaultKind | None:
        with self._lock:
            for fault in self._waiting:
                if method.startswith(fault.method) and path.startswith(fault.path):
                    if fault.after:
                        fault.after -= 1
                        return None
                    fault.times -= 1
                    if not fault.times:
                        self._waiting.remove(fault)
                    return fault.kind
        return None


def hang(connection: socket.socket, over: threading.Event) -> None:
    """Until the caller has had enough."""
    while not over.is_set():
        readable, _, _ = select.select([connection], [], [], 0.05)
        if readable and not connection.recv(1, socket.MSG_PEEK):
            return


def drip(connection: socket.socket, over: threading.Event) -> None:
    """Byte after byte, each long before anybody's patience with one is over."""
    connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    )
    while not over.wait(0.01):
        try:
            connection.sendall(b" ")
        except OSError:
            return


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
