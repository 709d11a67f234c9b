"""Rows as a page shows them (W2.3, W2.9)."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from zoneinfo import ZoneInfo

import pytest
import time_machine
from django.utils import translation

from copilot.chat import serializers as chat_serializers
from copilot.chat.notices import FailureSource
from copilot.chat.selectors import SessionPayload
from copilot.realtime.payloads import MessagePayload, ToolCallContent, ToolResultContent
from copilot.web import transcript

TURN = "turn-1"
TODAY = date(2026, 11, 16)


def row(
    sequence: int, kind: str, content: object = "", *, second: int = 0, streaming: bool = False
) -> MessagePayload:
    return MessagePayload(
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


def call(sequence: int) -> MessagePayload:
    return row(
        sequence, "tool_call", ToolCallContent(call_id="c", tool="write_file", arguments={"name": "a.txt"})
    )


def result(sequence: int, *, success: bool = True) -> MessagePayload:
    content = ToolResultContent(
        call_id="c", tool="write_file", success=success, preview="ok", duration_ms=1500, truncated=False
    )
    return row(sequence, "tool_result", content)


def test_a_result_is_shown_with_its_call() -> None:
    [item] = transcript.build_items([call(1), result(2)], running_turn=None)
    assert (item.label, item.detail, item.state, item.note) == ("Write file", "a.txt", "done", "1.5 s")


def test_a_result_whose_call_is_on_an_older_page_has_its_own_row() -> None:
    [item] = transcript.build_items([result(2, success=False)], running_turn=None)
    assert (item.label, item.state, item.note) == ("Write file", "failed", "failed · 1.5 s")


@pytest.mark.parametrize(("running", "state"), [(TURN, "running"), (None, "cancelled")])
def test_a_call_without_a_result_runs_only_as_long_as_its_turn(running: str | None, state: str) -> None:
    [item] = transcript.build_items([call(1)], running_turn=running)
    assert item.state == state


@pytest.mark.parametrize(
    ("code", "model", "offered"),
    [
        ("overloaded", "", True),
        ("auth_failed", "harbour-4", True),  # ours to mend, and no reason to wait for it
        ("context_full", "", False),
        ("stopped", "", False),
    ],
)
def test_a_failure_that_another_model_may_not_have_offers_one(code: str, model: str, offered: bool) -> None:
    """W2.6: switch the model, also where trying the same one again is of no use"""
    content = chat_serializers.serialize_notice(code, source=FailureSource(model=model))
    [item] = transcript.build_items([row(1, "notice", content)], running_turn=None)
    assert item.other_model == offered


def test_a_call_that_waits_for_a_person_says_so() -> None:
    """W2.3: a page that was reloaded meanwhile too"""
    [item] = transcript.build_items([call(1)], running_turn=TURN, waiting={"c"})
    assert (item.state, item.note) == ("waiting", "waiting")
    [item] = transcript.build_items([call(1), result(2)], running_turn=TURN, waiting={"c"})
    assert item.state == "done"


def test_a_thought_lasted_until_the_next_row_began() -> None:
    thought, answer = row(1, "reasoning", "hm", second=0), row(2, "assistant", "So", second=12)
    assert transcript.build_items([thought, answer], running_turn=None)[0].label == "Thought for 12 s"
    assert transcript.build_items([thought], running_turn=None)[0].label == "Thought"
    growing = replace(thought, streaming=True)
    assert transcript.build_items([growing], running_turn=TURN)[0].label == "Thinking…"


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1500, "1.5 s"),
        (9_949, "9.9 s"),
        (9_950, "10 s"),
        (12_500, "13 s"),
        (59_500, "1 min 0 s"),
        (99_500, "1 min 40 s"),
        (119_700, "2 min 0 s"),
    ],
)
def test_durations_are_short(milliseconds: int, words: str) -> None:
    assert transcript.format_duration(milliseconds) == words


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
    assert transcript.format_day_label(TODAY - timedelta(days=days), TODAY) == label


def session(moment: str) -> SessionPayload:
    return SessionPayload(
        id="s", title="", state="idle", pinned=False, archived=False, created_at=moment, active_at=moment
    )


@pytest.mark.parametrize(("language", "label"), [("de", "Oktober 2026"), ("es", "octubre de 2026")])
def test_months_are_named_in_the_language_of_the_page(language: str, label: str) -> None:
    """W4.6"""
    with translation.override(language), time_machine.travel("2026-11-16T12:00:00Z", tick=False):
        [group] = transcript.group_sessions_by_day([session("2026-10-07T12:00:00.000Z")], ZoneInfo("UTC"))
    assert (group.label, group.month) == (label, "2026-10")


@time_machine.travel("2026-11-16T01:30:00Z", tick=False)
def test_days_are_the_viewers_own() -> None:
    """01:30 UTC is still yesterday evening in New York, so 23:00 UTC of the day before is the same day there."""
    late = session("2026-11-15T23:00:00.000Z")
    assert transcript.group_sessions_by_day([late], ZoneInfo("America/New_York"))[0].label == "Today"
    assert transcript.group_sessions_by_day([late], ZoneInfo("UTC"))[0].label == "Yesterday"
    assert (
        transcript.group_sessions_by_day([replace(late, pinned=True)], ZoneInfo("UTC"))[0].label == "Pinned"
    )


def labels(rows: list[MessagePayload], *, running_turn: str | None = None) -> list[str]:
    """What each line is, with a ~ before what is folded away."""
    made = transcript.build_items(rows, running_turn=running_turn)
    return [
        item.label if "steps" in item.template else ("~" if item.fold else "") + item.row.kind
        for item in made
    ]


def test_steps_before_the_answer_fold_and_a_few_do_not() -> None:
    """W2.3"""
    rows = [row(1, "user"), row(2, "reasoning"), call(3), result(4), row(5, "reasoning"), row(6, "assistant")]
    folded = ["user", "Show 3 steps", "~reasoning", "~tool_call", "~reasoning", "assistant"]
    assert labels(rows) == folded
    assert labels(rows[:-2] + rows[-1:]) == ["user", "reasoning", "tool_call", "assistant"]


def test_the_steps_of_a_running_or_unanswered_turn_stay_in_sight() -> None:
    """W2.3"""
    rows = [row(2, "reasoning"), call(3), row(4, "reasoning"), row(5, "assistant")]
    assert "~reasoning" not in labels(rows, running_turn=TURN)
    assert labels([*rows[:3], row(6, "notice")]) == ["reasoning", "tool_call", "reasoning", "notice"]


def test_steps_before_a_word_of_the_user_fold_on_their_own() -> None:
    """W2.3, W2.5: what was said meanwhile stays where it was said"""
    steps = [row(1, "reasoning"), row(2, "assistant"), call(3)]
    rows = [*steps, row(4, "user"), row(5, "reasoning"), row(6, "assistant")]
    assert labels(rows)[0] == "Show 3 steps"
    assert labels(rows)[4:] == ["user", "reasoning", "assistant"]


def test_a_program_shows_its_command_status_and_output_even_when_it_is_cut() -> None:
    """W2.3"""
    whole = '{"exit_code": 1, "stderr": "no", "stdout": "a\\nb", "timed_out": false}'
    assert transcript.parse_shell_output("bash_exec", {"command": "ls"}, whole) == transcript.ShellOutput(
        command="ls", status="exit 1", stdout="a\nb", stderr="no", message=""
    )
    cut = transcript.parse_shell_output("bash_exec", {"command": "ls"}, whole[: whole.index("nb")])
    assert cut is not None
    assert cut.stdout == "a"
    assert transcript.parse_shell_output("bash_exec", {"command": "ls"}, "Error: no sandbox") is None
    assert transcript.parse_shell_output("web_fetch", {}, whole) is None


def test_a_call_is_named_by_words_and_not_by_lists() -> None:
    """W2.3: raw JSON appears only in the call's details"""
    for arguments, detail in (
        ({"items": '[{"text": "One"}]'}, ""),
        ({"items": '[{"text": "One"}]', "reason": "Later"}, "Later"),
    ):
        content = ToolCallContent(call_id="c", tool="todos_write", arguments=arguments)
        [item] = transcript.build_items([row(1, "tool_call", content)], running_turn=None)
        assert item.detail == detail
