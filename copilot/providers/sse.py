"""Server-sent events out of raw bytes: chunks in, whole `data` payloads out."""

from __future__ import annotations

from copilot.providers.base import ProviderFailure

MAX_LINE_BYTES = 16 * 1024 * 1024  # a line that never ends must not eat the process's memory


class EventReader:
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
