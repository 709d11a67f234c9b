"""The answer of a compatible API is read from the session's log: once, whole, and with its ending."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import msgspec
import pytest

from copilot.openai_compat import turns
from copilot.openai_compat.turns import AcceptedTurn, _TextReader
from copilot.realtime.event_log import LogEntry

TURN = uuid4()


def reader() -> _TextReader:
    return _TextReader(
        AcceptedTurn(
            caller=None, session_id=uuid4(), turn_id=TURN, run_id="run", cursor="0", started=True, kept=False
        )
    )


def logged(kind: str, **fields) -> LogEntry:
    payload = msgspec.json.encode({"turn_id": str(TURN), "kind": kind, **fields}).decode()
    return LogEntry(cursor="1-0", kind=kind, payload=payload)


def text(delta: str, offset: int, row: str = "a") -> LogEntry:
    return logged("text.extended", row_id=row, offset=offset, delta=delta)


SUCCEEDED = logged(
    "turn.succeeded", run_ids=["run"], limit_code=None, summary={"tokens": {"input": 3, "output": 2}}
)


def test_the_ending_in_the_log_is_the_outcome():
    reading = reader()
    assert reading.read_entries([text("One", 0), text(" two", 3), text("Three", 0, row="b")]) == [
        "One",
        " two",
        "\n\nThree",
    ]
    assert reading.read_success() is None
    reading.read_entries([SUCCEEDED])
    over = reading.read_success()
    assert reading.is_over
    assert (over.text, over.outcome.status, over.outcome.limit_code) == ("One two\n\nThree", "succeeded", "")
    assert (over.outcome.usage.input, over.outcome.usage.output) == (3, 2)


def test_text_that_is_published_again_after_an_outage_is_not_doubled():
    reading = reader()
    assert reading.read_entries([text("One", 0), text("One two", 0), text(" three", 7)]) == [
        "One",
        " two",
        " three",
    ]
    assert reading.text == "One two three"


@pytest.mark.parametrize(
    "broken", [text("later", 9), logged("step.retracted", row_ids=["a"])], ids=["gap", "retracted"]
)
def test_where_the_log_does_not_hold_the_whole_answer_the_rows_are_asked(broken):
    reading = reader()
    reading.read_entries([text("One", 0), broken, SUCCEEDED])
    assert reading.is_over
    assert reading.read_success() is None


async def test_a_stream_is_never_silent_for_long_whatever_else_the_log_says(monkeypatch):
    """X1.7: events that no client sees do not count as a sign of life"""
    monkeypatch.setattr(turns, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(turns, "_check_turn_row", lambda reader: None)

    async def busy():
        while True:
            await asyncio.sleep(0.01)
            yield [logged("turn.heartbeat", phase="tool", elapsed_seconds=1)]

    async for batch in turns._read_batches(busy(), reader()):
        assert isinstance(batch, turns.KeepAlive)
        break
