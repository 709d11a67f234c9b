"""What a program put out, taken apart for its tool row: command, exit status, stdout, stderr (W2.3); see shell.js."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Literal
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import msgspec
from django.utils.formats import date_format
from django.utils.timezone import now
from django.utils.translation import gettext as _

from copilot import metrics
from copilot.chat.selectors import SessionPayload
from copilot.realtime.payloads import (
    MessageContent,
    MessagePayload,
    NoticeContent,
    ToolCallContent,
    ToolResultContent,
    get_tool_label,
)
from copilot.web import markdown

PROGRAM_ARGUMENTS = {"bash_exec": "command", "python_exec": "code"}
_CUT_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{0,3})?$")


@dataclass(frozen=True, kw_only=True)
class ShellOutput:
    command: str
    status: str
    stdout: str
    stderr: str
    message: str


def parse_shell_output(tool: str, given: Mapping[str, str], preview: str) -> ShellOutput | None:
    """None when it was no program, or when its result cannot be read."""
    if tool not in PROGRAM_ARGUMENTS:
        return None
    said = _parse_preview(preview) if preview else {}
    if said is None or (preview and "exit_code" not in said):
        return None
    return ShellOutput(
        command=given.get(PROGRAM_ARGUMENTS[tool], ""),
        status=_format_exit_status(said),
        stdout=str(said.get("stdout", "")),
        stderr=str(said.get("stderr", "")),
        message=str(said.get("message", "")),
    )


def _format_exit_status(said: Mapping[str, object]) -> str:
    if said.get("timed_out"):
        return _("timed out")
    return _("exit {code}").format(code=said["exit_code"]) if "exit_code" in said else ""


def _parse_preview(preview: str) -> dict[str, object] | None:
    """The preview may end anywhere; its keys are sorted, so that what is cut is the end of stdout or stderr."""
    for text in (preview, _CUT_ESCAPE.sub("", preview) + '"}'):
        try:
            said = json.loads(text)
        except ValueError:
            continue
        return said if isinstance(said, dict) else None
    return None


# MERGED stepfolds: Which rows of a page fold into "Show 7 steps" (W2.3); the browser's twin is steps.js.

MIN_FOLDED_STEPS = 3  # fewer lines are calmer than a line that hides them
STEP_KINDS = frozenset({"reasoning", "tool_call", "tool_result", "assistant"})


@dataclass(frozen=True, kw_only=True)
class StepFold:
    key: str  # id of the row behind it, which stays the same when older steps join
    rows: list[MessagePayload]


def find_step_folds(rows: Sequence[MessagePayload], *, running_turn: str | None) -> list[StepFold]:
    """Those of one ended turn in a row, up to the answer or to a word of the user."""
    found: list[StepFold] = []
    part: list[MessagePayload] = []
    for row in [*rows, None]:
        if part and (row is None or row.kind not in STEP_KINDS or row.turn_id != part[0].turn_id):
            fold = _build_step_fold(part, row)
            if fold is not None and len(fold.rows) >= MIN_FOLDED_STEPS and part[0].turn_id != running_turn:
                found.append(fold)
            part = []
        if row is not None and row.kind in STEP_KINDS:
            part.append(row)
    return found


def _build_step_fold(part: list[MessagePayload], following: MessagePayload | None) -> StepFold | None:
    """What may fold away: all but the answer; nothing where neither an answer nor the user's word follows."""
    if part[-1].kind == "assistant":
        return StepFold(key=part[-1].id, rows=part[:-1])
    return (
        StepFold(key=following.id, rows=part) if following is not None and following.kind == "user" else None
    )


# MERGED transcript: Rows of the transcript as a page shows them: paired, labelled and rendered; the browser's twin is rows.js.

RowState = Literal["", "running", "waiting", "done", "failed", "cancelled"]
RECENT_DAYS = 30  # chats that were quiet for longer stand under their month
PLAIN_ROW_MAX_CHARACTERS = 100_000  # of a row that could not be prepared
DETAIL_ARGUMENTS = ("command", "question", "name", "file", "path", "url", "query", "title", "prompt")
FILE_URI = re.compile(
    r"workspace://([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![0-9a-f-])(?:/([^#?]*))?", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class TranscriptItem:
    """What one row's template needs; empty fields belong to other kinds."""

    template: str
    row: MessagePayload
    html: str = ""  # already safe
    state: RowState = ""
    label: str = ""
    detail: str = ""
    note: str = ""
    arguments: tuple[
        tuple[str, str], ...
    ] = ()  # in pairs: a template would take `.items` for an argument of that name
    result: str = ""
    file_id: str | None = None
    session_id: str | None = None
    shell: ShellOutput | None = None
    fold: str = ""  # the fold it belongs to, named by its last row
    other_model: bool = False  # a failure that another model may not have


def build_items(
    rows: Sequence[MessagePayload], *, running_turn: str | None, waiting: Container[str] = ()
) -> list[TranscriptItem]:
    """A result is shown with its call, unless the call is on an older page; `waiting` are calls that wait for a person."""
    results = {row.content.call_id: row.content for row in rows if isinstance(row.content, ToolResultContent)}
    called = {row.content.call_id for row in rows if isinstance(row.content, ToolCallContent)}
    shown = [
        row
        for row in rows
        if not (isinstance(row.content, ToolResultContent) and row.content.call_id in called)
    ]
    budget = markdown.PageBudget()
    made = [
        _build_item_or_plain(
            row,
            _find_next_row(rows, row),
            results,
            running=row.turn_id is not None and row.turn_id == running_turn,
            budget=budget,
        )
        for row in shown
    ]
    made = [_mark_waiting(item) if _get_call_id(item.row) in waiting else item for item in made]
    return _insert_fold_lines(made, find_step_folds(shown, running_turn=running_turn))


def _insert_fold_lines(made: list[TranscriptItem], folds: list[StepFold]) -> list[TranscriptItem]:
    """With a line before each fold, and its rows marked; a reader without a script sees them all."""
    fold_of = {row.id: fold for fold in folds for row in fold.rows}
    lines: list[TranscriptItem] = []
    for item in made:
        fold = fold_of.get(item.row.id)
        if fold is not None and item.row.id == fold.rows[0].id:
            label = _("Show %s steps") % len(fold.rows)
            lines.append(
                TranscriptItem(template="copilot/_row_steps.html", row=item.row, label=label, fold=fold.key)
            )
        lines.append(item if fold is None else replace(item, fold=fold.key))
    return lines


def _get_call_id(row: MessagePayload) -> str:
    return row.content.call_id if isinstance(row.content, ToolCallContent) else ""


def _mark_waiting(item: TranscriptItem) -> TranscriptItem:
    return replace(item, state="waiting", note=_("waiting")) if item.state == "running" else item


def _find_next_row(rows: Sequence[MessagePayload], row: MessagePayload) -> MessagePayload | None:
    return next((later for later in rows if later.sequence > row.sequence), None)


def _build_item_or_plain(
    row: MessagePayload,
    following: MessagePayload | None,
    results: dict[str, ToolResultContent],
    *,
    running: bool,
    budget: markdown.PageBudget,
) -> TranscriptItem:
    """Show a row that cannot be prepared by its bare text: one row must not take its chat down."""
    try:
        return _build_item(row, following, results, running=running, budget=budget)
    except Exception as problem:  # noqa: BLE001
        return build_plain_item(row, problem)


def build_plain_item(row: MessagePayload, problem: Exception) -> TranscriptItem:
    markdown.report_failure("row_failed", problem, message_id=row.id, kind=row.kind)
    metrics.unrendered_texts.labels(reason="row_failed").inc()
    text = row.content if isinstance(row.content, str) else msgspec.json.encode(row.content).decode()
    return TranscriptItem(template="copilot/_row_plain.html", row=row, result=text[:PLAIN_ROW_MAX_CHARACTERS])


def _build_item(
    row: MessagePayload,
    following: MessagePayload | None,
    results: dict[str, ToolResultContent],
    *,
    running: bool,
    budget: markdown.PageBudget,
) -> TranscriptItem:
    if isinstance(row.content, ToolCallContent | ToolResultContent):
        return _build_tool_item(row, row.content, results.get(row.content.call_id), running=running)
    text = row.content if isinstance(row.content, str) else ""
    match row.kind:
        case "user":
            return TranscriptItem(template="copilot/_row_user.html", row=row)
        case "reasoning":
            return TranscriptItem(
                template="copilot/_row_thought.html",
                row=row,
                html=markdown.render(text, find_file=_find_workspace_file, budget=budget),
                state="running" if row.streaming else "done",
                label=format_thought_label(row, following),
            )
        case "notice":
            return TranscriptItem(
                template="copilot/_row_notice.html", row=row, other_model=_can_try_another_model(row.content)
            )
        case "summary":
            return TranscriptItem(
                template="copilot/_row_summary.html",
                row=row,
                html=markdown.render(text, find_file=_find_workspace_file, budget=budget),
            )
        case _:
            return TranscriptItem(
                template="copilot/_row_answer.html",
                row=row,
                html=markdown.render(text, find_file=_find_workspace_file, budget=budget),
                note=format_duration(row.duration_ms) if row.duration_ms is not None else "",
            )


def _can_try_another_model(content: MessageContent) -> bool:
    """What may be tried again, and what a provider would not do at any time (W2.6)."""
    if not isinstance(content, NoticeContent):
        return False
    return content.action == "retry" or (content.action == "none" and bool(content.model))


def _find_workspace_file(uri: str) -> markdown.LinkedFile | None:
    """Where its owner looks at a file that a text names: that page knows whether it is there, so nothing is asked here.

    What a text shows as a picture is tried as one; the page puts its name there if it is none.
    """
    found = FILE_URI.match(uri)
    if found is None:
        return None
    file_id, name = found[1].lower(), unquote(found[2] or "").strip()
    return markdown.LinkedFile(
        href=f"/files/{file_id}/",
        name=name or _("file"),
        picture=f"/api/v1/files/{file_id}/download?inline=1",
    )


def _build_tool_item(
    row: MessagePayload,
    content: ToolCallContent | ToolResultContent,
    result: ToolResultContent | None,
    *,
    running: bool,
) -> TranscriptItem:
    arguments = content.arguments if isinstance(content, ToolCallContent) else {}
    state, note = _get_tool_state(result, running=running)
    program = parse_shell_output(content.tool, arguments, result.preview if result else "")
    return TranscriptItem(
        template="copilot/_row_tool.html",
        row=row,
        state=state,
        label=get_tool_label(content.tool),
        detail=_pick_detail(arguments),
        note=note,
        arguments=tuple(arguments.items()),
        result=result.preview if result and program is None else "",
        shell=program,
        file_id=result.file_id if result else None,
        session_id=result.session_id if result else None,
    )


def _pick_detail(arguments: Mapping[str, str]) -> str:
    """The argument that says most of what is done; lists and objects say nothing at a glance."""
    plain = (value for value in arguments.values() if not value.startswith(("[", "{")))
    return next((arguments[name] for name in DETAIL_ARGUMENTS if arguments.get(name)), next(plain, ""))


def _get_tool_state(result: ToolResultContent | None, *, running: bool) -> tuple[RowState, str]:
    if result is None:
        return ("running", _("running…")) if running else ("cancelled", _("stopped"))
    if result.cancelled:
        return "cancelled", _("stopped")
    if result.success:
        return "done", format_duration(result.duration_ms)
    return "failed", _("failed · {duration}").format(duration=format_duration(result.duration_ms))


def format_duration(milliseconds: int) -> str:
    """To the letter what static/js/rows.js writes: a half is rounded up, and there is no sixtieth second."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 9_950:
        return f"{(milliseconds + 50) // 100 / 10:.1f} s"
    seconds = (milliseconds + 500) // 1000
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60} s"


def format_thought_label(row: MessagePayload, following: MessagePayload | None) -> str:
    """How long the model thought: until the next row began, which reload and live view both know."""
    if row.streaming:
        return _("Thinking…")
    if following is None:
        return _("Thought")
    seconds = max(
        1, round((_parse_instant(following.created_at) - _parse_instant(row.created_at)).total_seconds())
    )
    if seconds < 60:
        return _("Thought for {seconds} s").format(seconds=seconds)
    return _("Thought for {minutes} min {seconds} s").format(minutes=seconds // 60, seconds=seconds % 60)


def _parse_instant(iso: str) -> datetime:
    return datetime.fromisoformat(iso)


# --- the sidebar -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SessionGroup:
    label: str
    sessions: list[SessionPayload]
    month: str = ""  # `2026-10`, if that is what the label names: browsers write some months otherwise


def group_sessions_by_day(sessions: Sequence[SessionPayload], zone: ZoneInfo) -> list[SessionGroup]:
    """Neighbours under one heading, in the viewer's days."""
    today = now().astimezone(zone).date()
    groups: list[SessionGroup] = []
    for session in sessions:
        day = _parse_instant(session.active_at).astimezone(zone).date()
        label = _("Pinned") if session.pinned else format_day_label(day, today)
        if not groups or groups[-1].label != label:
            month = "" if session.pinned or (today - day).days < RECENT_DAYS else f"{day:%Y-%m}"
            groups.append(SessionGroup(label=label, month=month, sessions=[]))
        groups[-1].sessions.append(session)
    return groups


def format_day_label(day: date, today: date) -> str:
    days = (today - day).days
    if days <= 0:
        return _("Today")
    if days == 1:
        return _("Yesterday")
    if days < 7:
        return _("Previous 7 days")
    if days < RECENT_DAYS:
        return _("Previous 30 days")
    return date_format(day, "YEAR_MONTH_FORMAT")
