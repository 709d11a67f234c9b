"""Build the rows of a chat's transcript for its page: paired, labelled, rendered and folded.

The browser builds the same rows in static/js: rows.js, steps.js and shell.js.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from itertools import islice
from typing import Literal
from urllib.parse import unquote
from uuid import UUID
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


def parse_shell_output(tool: str, arguments: Mapping[str, str], preview: str) -> ShellOutput | None:
    """Parse the result of a program; return None for other tools and unreadable results."""
    if tool not in PROGRAM_ARGUMENTS:
        return None
    output = _parse_preview(preview) if preview else {}
    if output is None or (preview and "exit_code" not in output):
        return None
    return ShellOutput(
        command=arguments.get(PROGRAM_ARGUMENTS[tool], ""),
        status=_format_exit_status(output),
        stdout=str(output.get("stdout", "")),
        stderr=str(output.get("stderr", "")),
        message=str(output.get("message", "")),
    )


def _format_exit_status(output: Mapping[str, object]) -> str:
    if output.get("timed_out"):
        return _("timed out")
    return _("exit {code}").format(code=output["exit_code"]) if "exit_code" in output else ""


def _parse_preview(preview: str) -> dict[str, object] | None:
    """Parse a preview that may be cut anywhere. Keys are sorted, so the cut is at the end of stdout or stderr."""
    for text in (preview, _CUT_ESCAPE.sub("", preview) + '"}'):
        try:
            output = json.loads(text)
        except ValueError:
            continue
        return output if isinstance(output, dict) else None
    return None


# --- Folded steps ---

MIN_FOLDED_STEPS = 3  # fewer steps are not worth hiding
STEP_KINDS = frozenset({"reasoning", "tool_call", "tool_result", "assistant"})


@dataclass(frozen=True, kw_only=True)
class StepFold:
    key: str  # id of the row after it, which stays the same when older steps join
    rows: list[MessagePayload]


def find_step_folds(rows: Sequence[MessagePayload], *, running_turn: str | None) -> list[StepFold]:
    """Find runs of steps of one ended turn, up to the answer or to a message of the user."""
    folds: list[StepFold] = []
    steps: list[MessagePayload] = []
    for row in [*rows, None]:
        if steps and (row is None or row.kind not in STEP_KINDS or row.turn_id != steps[0].turn_id):
            fold = _build_step_fold(steps, row)
            if fold is not None and len(fold.rows) >= MIN_FOLDED_STEPS and steps[0].turn_id != running_turn:
                folds.append(fold)
            steps = []
        if row is not None and row.kind in STEP_KINDS:
            steps.append(row)
    return folds


def _build_step_fold(steps: list[MessagePayload], following: MessagePayload | None) -> StepFold | None:
    """Fold all steps but the answer; fold nothing if neither an answer nor a user message follows."""
    if steps[-1].kind == "assistant":
        return StepFold(key=steps[-1].id, rows=steps[:-1])
    return (
        StepFold(key=following.id, rows=steps) if following is not None and following.kind == "user" else None
    )


# --- Rows ---

RowState = Literal["", "running", "waiting", "done", "failed", "cancelled"]
MAX_NAMED_FILES = 200  # of a page, looked up by their ids
RECENT_DAYS = 30  # older chats are listed under their month
PLAIN_ROW_MAX_CHARACTERS = 100_000  # of a row that could not be rendered
DETAIL_ARGUMENTS = ("command", "question", "name", "file", "path", "url", "query", "title", "prompt")
FILE_URI = re.compile(
    r"workspace://([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![0-9a-f-])(?:/([^#?]*))?", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class TranscriptItem:
    """The values for one row's template; empty fields belong to other kinds."""

    template: str
    row: MessagePayload
    html: str = ""  # already safe
    state: RowState = ""
    label: str = ""
    detail: str = ""
    note: str = ""
    # Pairs, because a template would read `.items` of a mapping as an argument of that name.
    arguments: tuple[tuple[str, str], ...] = ()
    result: str = ""
    file_id: str | None = None
    session_id: str | None = None
    shell: ShellOutput | None = None
    fold: str = ""  # the key of the fold it belongs to
    other_model: bool = False  # another model may succeed where this one failed


def list_named_files(rows: Sequence[MessagePayload]) -> list[UUID]:
    """List files that texts name by their id only, at most as many as a page needs."""
    texts = (row.content for row in rows if isinstance(row.content, str) and row.kind != "user")
    found = (match for text in texts for match in FILE_URI.finditer(text) if not match[2])
    return [
        UUID(file_id)
        for file_id in islice(dict.fromkeys(match[1].lower() for match in found), MAX_NAMED_FILES)
    ]


def build_items(
    rows: Sequence[MessagePayload],
    *,
    running_turn: str | None,
    waiting: Container[str] = (),
    file_names: Mapping[str, str] | None = None,
) -> list[TranscriptItem]:
    """Build the rows of a page; `waiting` are calls that wait for a person.

    A result is shown with its call, unless the call is on an older page. `file_names` has the names, by id, of files
    that texts name by their id only.
    """
    find_file = partial(_find_workspace_file, file_names or {})
    results = {row.content.call_id: row.content for row in rows if isinstance(row.content, ToolResultContent)}
    called_ids = {row.content.call_id for row in rows if isinstance(row.content, ToolCallContent)}
    shown = [
        row
        for row in rows
        if not (isinstance(row.content, ToolResultContent) and row.content.call_id in called_ids)
    ]
    budget = markdown.PageBudget()
    items = [
        _build_item_or_plain(
            row,
            _find_next_row(rows, row),
            results,
            running=row.turn_id is not None and row.turn_id == running_turn,
            budget=budget,
            find_file=find_file,
        )
        for row in shown
    ]
    items = [_mark_waiting(item) if _get_call_id(item.row) in waiting else item for item in items]
    return _insert_fold_lines(items, find_step_folds(shown, running_turn=running_turn))


def _insert_fold_lines(items: list[TranscriptItem], folds: list[StepFold]) -> list[TranscriptItem]:
    """Insert a line before each fold and mark its rows. Without scripts, all rows stay visible."""
    folds_by_row = {row.id: fold for fold in folds for row in fold.rows}
    lines: list[TranscriptItem] = []
    for item in items:
        fold = folds_by_row.get(item.row.id)
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
    find_file: markdown.FindFile,
) -> TranscriptItem:
    """Show a row as plain text if it cannot be rendered: one row must not break its chat."""
    try:
        return _build_item(row, following, results, running=running, budget=budget, find_file=find_file)
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
    find_file: markdown.FindFile,
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
                html=markdown.render(text, find_file=find_file, budget=budget),
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
                html=markdown.render(text, find_file=find_file, budget=budget),
            )
        case _:
            return TranscriptItem(
                template="copilot/_row_answer.html",
                row=row,
                html=markdown.render(text, find_file=find_file, budget=budget),
                note=format_duration(row.duration_ms) if row.duration_ms is not None else "",
            )


def _can_try_another_model(content: MessageContent) -> bool:
    """Offer another model for errors that may be retried and for those of one provider."""
    if not isinstance(content, NoticeContent):
        return False
    return content.action == "retry" or (content.action == "none" and bool(content.model))


def _find_workspace_file(names: Mapping[str, str], uri: str) -> markdown.LinkedFile | None:
    """Link a file that a text names to its owner's page, without checking that it exists.

    A file used as an image is tried as one; the page shows its name if that fails.
    """
    match = FILE_URI.match(uri)
    if match is None:
        return None
    file_id, name = match[1].lower(), unquote(match[2] or "").strip()
    return markdown.LinkedFile(
        href=f"/files/{file_id}/",
        name=name or names.get(file_id) or _("file"),
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
        label=_get_call_label(content, is_finished=result is not None),
        detail=_pick_detail(arguments),
        note=note,
        arguments=tuple(arguments.items()),
        result=result.preview if result and program is None else "",
        shell=program,
        file_id=result.file_id if result else None,
        session_id=result.session_id if result else None,
    )


def _get_call_label(content: ToolCallContent | ToolResultContent, *, is_finished: bool) -> str:
    if isinstance(content, ToolCallContent) and (
        label := content.label if is_finished else content.running_label
    ):
        return _(label)
    return get_tool_label(content.tool)


def _pick_detail(arguments: Mapping[str, str]) -> str:
    """Pick the argument that says most about the call; lists and objects say little at a glance."""
    plain = (value for value in arguments.values() if not value.startswith(("[", "{")))
    return next((arguments[name] for name in DETAIL_ARGUMENTS if arguments.get(name)), next(plain, ""))


def _get_tool_state(result: ToolResultContent | None, *, running: bool) -> tuple[RowState, str]:
    if result is None:
        return ("running", _("running…")) if running else ("cancelled", _("stopped"))
    if result.cancelled:
        return "cancelled", _("stopped")
    parts = ["" if result.success else _("failed"), result.summary, format_duration(result.duration_ms)]
    has_failed = not result.success or result.program_failed
    return "failed" if has_failed else "done", " · ".join(part for part in parts if part)


def format_duration(milliseconds: int) -> str:
    """Format a duration exactly as static/js/rows.js does: halves are rounded up, and there is no 60th second."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 9_950:
        return f"{(milliseconds + 50) // 100 / 10:.1f} s"
    seconds = (milliseconds + 500) // 1000
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60} s"


def format_thought_label(row: MessagePayload, following: MessagePayload | None) -> str:
    """Say how long the model thought: until the next row began, which both reload and live view know."""
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


# --- The sidebar ---


@dataclass(frozen=True, kw_only=True)
class SessionGroup:
    label: str
    sessions: list[SessionPayload]
    month: str = ""  # such as `2026-10` if the label is a month, which browsers format themselves


def group_sessions_by_day(sessions: Sequence[SessionPayload], zone: ZoneInfo) -> list[SessionGroup]:
    """Group neighbouring sessions under one heading, in the viewer's time zone."""
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
