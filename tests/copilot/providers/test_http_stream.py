"""Events are the same however the network cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copilot.providers import http_stream
from copilot.providers.base import ProviderFailure
from copilot.providers.http_stream import SSEReader

STREAM = b': hello\n\nevent: x\ndata: {"a":1}\n\ndata:{"b":2}\r\n\r\nid: 3\nretry: 5\n\ndata: one\ndata: two\n\ndata: [DONE]'
EVENTS = [b'{"a":1}', b'{"b":2}', b"one\ntwo", b"[DONE]"]


@given(st.lists(st.integers(1, 9), max_size=40))
def test_any_cut_gives_the_same_events(sizes: list[int]) -> None:
    reader, found, rest = SSEReader(), [], STREAM
    for size in sizes:
        found += reader.feed(rest[:size])
        rest = rest[size:]
    assert found + reader.feed(rest) + reader.flush() == EVENTS


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_stream, "MAX_LINE_BYTES", 100)
    reader = SSEReader()
    reader.feed(b"data: " + b"x" * 90)
    with pytest.raises(ProviderFailure, match="no end"):
        reader.feed(b"x" * 90)
