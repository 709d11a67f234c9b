"""Rows as a page shows them (W2.3, W2.9)."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from zoneinfo import ZoneInfo

import pytest
import time_machine

from copilot import transcript
from copilot.events import MessageView, ToolCallContent, ToolResultContent
from copilot.queries import SessionView

TURN = "turn-1"
TODAY = date(2026, 11, 16)


def row(
    sequence: int, kind: str, content: object = "", *, second: int = 0, streaming: bool = False
) -> MessageView:
    return MessageView(
        id=f"row-{sequence}",
        sequence=sequence,
        turn_id=TURN,
        kind=kind,
        role="assistant",
        content=content,
        author="",
        attachments=[],
        branch=0,
        created_at=f"2026-11-16T10:00:{second:02d}.000Z",
        streaming=streaming,
    )


def call(sequence: int) -> MessageView:
    return row(
        sequence, "tool_call", ToolCallContent(call_id="c", tool="write_file", arguments={"name": "a.txt"})
    )


def result(sequence: int, *, success: bool = True) -> MessageView:
    content = ToolResultContent(
        call_id="c", tool="write_file", success=success, preview="ok", duration_ms=1500, truncated=False
    )
    return row(sequence, "tool_result", content)


def test_a_result_is_shown_with_its_call() -> None:
    [item] = transcript.items([call(1), result(2)], running_turn=None)
    assert (item.label, item.detail, item.state, item.note) == ("Write file", "a.txt", "done", "1.5 s")


def test_a_result_whose_call_is_on_an_older_page_stands_alone() -> None:
    [item] = transcript.items([result(2, success=False)], running_turn=None)
    assert (item.label, item.state, item.note) == ("Write file", "failed", "failed · 1.5 s")


@pytest.mark.parametrize(("running", "state"), [(TURN, "running"), (None, "cancelled")])
def test_a_call_without_a_result_runs_only_as_long_as_its_turn(running: str | None, state: str) -> None:
    [item] = transcript.items([call(1)], running_turn=running)
    assert item.state == state


def test_a_thought_lasted_until_the_next_row_began() -> None:
    thought, answer = row(1, "reasoning", "hm", second=0), row(2, "assistant", "So", second=12)
    assert transcript.items([thought, answer], running_turn=None)[0].label == "Thought for 12 s"
    assert transcript.items([thought], running_turn=None)[0].label == "Thought"
    growing = replace(thought, streaming=True)
    assert transcript.items([growing], running_turn=TURN)[0].label == "Thinking…"


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(0, "0 ms"), (999, "999 ms"), (1500, "1.5 s"), (12_400, "12 s"), (61_000, "1 min 1 s")],
)
def test_durations_are_short(milliseconds: int, words: str) -> None:
    assert transcript.duration(milliseconds) == words


@pytest.mark.parametrize(
    ("days", "label"),
    [
        (0, "Today"),
        (-1, "Today"),
        (1, "Yesterday"),
        (6, "Previous 7 days"),
        (29, "Previous 30 days"),
        (40, "October 2026"),
    ],
)
def test_sessions_stand_under_their_day(days: int, label: str) -> None:
    assert transcript.day_label(TODAY - timedelta(days=days), TODAY) == label


@time_machine.travel("2026-11-16T01:30:00Z", tick=False)
def test_days_are_the_viewers_own() -> None:
    """01:30 UTC is still yesterday evening in New York, so 23:00 UTC of the day before is the same day there."""
    session = SessionView(
        id="s",
        title="",
        state="idle",
        pinned=False,
        archived=False,
        created_at="2026-11-15T23:00:00.000Z",
        active_at="2026-11-15T23:00:00.000Z",
    )
    assert transcript.by_day([session], ZoneInfo("America/New_York"))[0].label == "Today"
    assert transcript.by_day([session], ZoneInfo("UTC"))[0].label == "Yesterday"
    assert transcript.by_day([replace(session, pinned=True)], ZoneInfo("UTC"))[0].label == "Pinned"
