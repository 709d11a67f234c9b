"""A scan hook for a ClamAV daemon: WORKSPACE_SCAN_HOOK=copilot.files.clamav.scan."""

from __future__ import annotations

import socket
import struct
from typing import IO, Literal

from django.conf import settings

from config.core.errors import ScanFailed

ANSWER_TIMEOUT_SECONDS = 120.0  # after the last byte; the daemon unpacks large archives first
CHUNK_BYTES = 64 * 1024
_MAX_ANSWER_BYTES = 4096


def scan(stream: IO[bytes], meta: object) -> Literal["clean", "infected"]:
    """Send the bytes with INSTREAM. Anything but a verdict raises, including an exceeded size limit."""
    with _connect(settings.CLAMD_ADDRESS) as daemon:
        daemon.sendall(b"zINSTREAM\0")
        try:
            while chunk := stream.read(CHUNK_BYTES):
                daemon.sendall(struct.pack("!I", len(chunk)) + chunk)
            daemon.sendall(struct.pack("!I", 0))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the daemon stops reading once it has an answer
        return _parse_verdict(_read_answer(daemon))


def _connect(address: str) -> socket.socket:
    if address.startswith("unix:"):
        daemon = socket.socket(socket.AF_UNIX)
        daemon.settimeout(ANSWER_TIMEOUT_SECONDS)
        try:
            daemon.connect(address.removeprefix("unix:"))
        except OSError:
            daemon.close()
            raise
        return daemon
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_TIMEOUT_SECONDS)


def _read_answer(daemon: socket.socket) -> str:
    answer = b""
    while not answer.endswith(b"\0") and len(answer) < _MAX_ANSWER_BYTES:
        part = daemon.recv(_MAX_ANSWER_BYTES)
        if not part:
            break
        answer += part
    return answer.rstrip(b"\0").decode(errors="replace").strip()


def _parse_verdict(answer: str) -> Literal["clean", "infected"]:
    if answer == "stream: OK":
        return "clean"
    if answer.startswith("stream: ") and answer.endswith(" FOUND"):
        return "infected"
    raise ScanFailed("the daemon gave no verdict" if not answer else f"the daemon answered: {answer[:200]}")
