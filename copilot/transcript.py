"""Rows of the transcript as a page shows them: paired, labelled and rendered; the browser's twin is rows.js."""

from __future__ import annotations

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

from copilot import markdown, metrics, shell, stepfolds
from copilot.events import Content, MessageView, NoticeContent, ToolCallContent, ToolResultContent, tool_label
from copilot.queries import SessionView

State = Literal["", "running", "waiting", "done", "failed", "cancelled"]
RECENT_DAYS = 30  # chats that were quiet for longer stand under their month
PLAIN_CHARACTERS = 100_000  # of a row that could not be prepared
TELLING = ("command", "question", "name", "file", "path", "url", "query", "title", "prompt")
FILE_URI = re.compile(
    r"workspace://([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![0-9a-f-])(?:/([^#?]*))?", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Item:
    """What one row's template needs; empty fields belong to other kinds."""

    template: str
    row: MessageView
    html: str = ""  # already safe
    state: State = ""
    label: str = ""
    detail: str = ""
    note: str = ""
    arguments: tuple[
        tuple[str, str], ...
    ] = ()  # in pairs: a template would take `.items` for an argument of that name
    result: str = ""
    file_id: str | None = None
    session_id: str | None = None
    shell: shell.Shell | None = None
    fold: str = ""  # the fold it belongs to, named by its last row
    other_model: bool = False  # a failure that another model may not have


def items(
    rows: Sequence[MessageView], *, running_turn: str | None, waiting: Container[str] = ()
) -> list[Item]:
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
        _item_or_plain(
            row,
            _after(rows, row),
            results,
            running=row.turn_id is not None and row.turn_id == running_turn,
            budget=budget,
        )
        for row in shown
    ]
    made = [_as_waiting(item) if _call_of(item.row) in waiting else item for item in made]
    return _folded(made, stepfolds.folds(shown, running_turn=running_turn))


def _folded(made: list[Item], folds: list[stepfolds.Fold]) -> list[Item]:
    """With a line before each fold, and its rows marked; a reader without a script sees them all."""
    fold_of = {row.id: fold for fold in folds for row in fold.rows}
    lines: list[Item] = []
    for item in made:
        fold = fold_of.get(item.row.id)
        if fold is not None and item.row.id == fold.rows[0].id:
            label = _("Show %s steps") % len(fold.rows)
            lines.append(Item(template="copilot/_row_steps.html", row=item.row, label=label, fold=fold.key))
        lines.append(item if fold is None else replace(item, fold=fold.key))
    return lines


def _call_of(row: MessageView) -> str:
    return row.content.call_id if isinstance(row.content, ToolCallContent) else ""


def _as_waiting(item: Item) -> Item:
    return replace(item, state="waiting", note=_("waiting")) if item.state == "running" else item


def _after(rows: Sequence[MessageView], row: MessageView) -> MessageView | None:
    return next((later for later in rows if later.sequence > row.sequence), None)


def _item_or_plain(
    row: MessageView,
    following: MessageView | None,
    results: dict[str, ToolResultContent],
    *,
    running: bool,
    budget: markdown.PageBudget,
) -> Item:
    """Show a row that cannot be prepared by its bare text: one row must not take its chat down."""
    try:
        return _item(row, following, results, running=running, budget=budget)
    except Exception as problem:  # noqa: BLE001
        return plain_item(row, problem)


def plain_item(row: MessageView, problem: Exception) -> Item:
    markdown.report_failure("row_failed", problem, message_id=row.id, kind=row.kind)
    metrics.unrendered_texts.labels(reason="row_failed").inc()
    text = row.content if isinstance(row.content, str) else msgspec.json.encode(row.content).decode()
    return Item(template="copilot/_row_plain.html", row=row, result=text[:PLAIN_CHARACTERS])


def _item(
    row: MessageView,
    following: MessageView | None,
    results: dict[str, ToolResultContent],
    *,
    running: bool,
    budget: markdown.PageBudget,
) -> Item:
    if isinstance(row.content, ToolCallContent | ToolResultContent):
        return _tool(row, row.content, results.get(row.content.call_id), running=running)
    text = row.content if isinstance(row.content, str) else ""
    match row.kind:
        case "user":
            return Item(template="copilot/_row_user.html", row=row)
        case "reasoning":
            return Item(
                template="copilot/_row_thought.html",
                row=row,
                html=markdown.render(text, find_file=_own_file, budget=budget),
                state="running" if row.streaming else "done",
                label=thought_label(row, following),
            )
        case "notice":
            return Item(template="copilot/_row_notice.html", row=row, other_model=_may_switch(row.content))
        case "summary":
            return Item(
                template="copilot/_row_summary.html",
                row=row,
                html=markdown.render(text, find_file=_own_file, budget=budget),
            )
        case _:
            return Item(
                template="copilot/_row_answer.html",
                row=row,
                html=markdown.render(text, find_file=_own_file, budget=budget),
                note=duration(row.duration_ms) if row.duration_ms is not None else "",
            )


def _may_switch(content: Content) -> bool:
    """What may be tried again, and what a provider would not do at any time (W2.6)."""
    if not isinstance(content, NoticeContent):
        return False
    return content.action == "retry" or (content.action == "none" and bool(content.model))


def _own_file(uri: str) -> markdown.Linked | None:
    """Where its owner looks at a file that a text names: that page knows whether it is there, so nothing is asked here.

    What a text shows as a picture is tried as one; the page puts its name there if it is none.
    """
    found = FILE_URI.match(uri)
    if found is None:
        return None
    file_id, name = found[1].lower(), unquote(found[2] or "").strip()
    return markdown.Linked(
        href=f"/files/{file_id}/",
        name=name or _("file"),
        picture=f"/api/v1/files/{file_id}/download?inline=1",
    )


def _tool(
    row: MessageView,
    content: ToolCallContent | ToolResultContent,
    result: ToolResultContent | None,
    *,
    running: bool,
) -> Item:
    arguments = content.arguments if isinstance(content, ToolCallContent) else {}
    state, note = _tool_state(result, running=running)
    program = shell.of(content.tool, arguments, result.preview if result else "")
    return Item(
        template="copilot/_row_tool.html",
        row=row,
        state=state,
        label=tool_label(content.tool),
        detail=_detail(arguments),
        note=note,
        arguments=tuple(arguments.items()),
        result=result.preview if result and program is None else "",
        shell=program,
        file_id=result.file_id if result else None,
        session_id=result.session_id if result else None,
    )


def _detail(arguments: Mapping[str, str]) -> str:
    """The argument that says most of what is done; lists and objects say nothing at a glance."""
    plain = (value for value in arguments.values() if not value.startswith(("[", "{")))
    return next((arguments[name] for name in TELLING if arguments.get(name)), next(plain, ""))


def _tool_state(result: ToolResultContent | None, *, running: bool) -> tuple[State, str]:
    if result is None:
        return ("running", _("running…")) if running else ("cancelled", _("stopped"))
    if result.cancelled:
        return "cancelled", _("stopped")
    if result.success:
        return "done", duration(result.duration_ms)
    return "failed", _("failed · {duration}").format(duration=duration(result.duration_ms))


def duration(milliseconds: int) -> str:
    """To the letter what static/js/rows.js writes: a half is rounded up, and there is no sixtieth second."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 9_950:
        return f"{(milliseconds + 50) // 100 / 10:.1f} s"
    seconds = (milliseconds + 500) // 1000
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60} s"


def thought_label(row: MessageView, following: MessageView | None) -> str:
    """How long the model thought: until the next row began, which reload and live view both know."""
    if row.streaming:
        return _("Thinking…")
    if following is None:
        return _("Thought")
    seconds = max(1, round((_moment(following.created_at) - _moment(row.created_at)).total_seconds()))
    if seconds < 60:
        return _("Thought for {seconds} s").format(seconds=seconds)
    return _("Thought for {minutes} min {seconds} s").format(minutes=seconds // 60, seconds=seconds % 60)


def _moment(iso: str) -> datetime:
    return datetime.fromisoformat(iso)


# --- the sidebar -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SessionGroup:
    label: str
    sessions: list[SessionView]
    month: str = ""  # `2026-10`, if that is what the label names: browsers write some months otherwise


def by_day(sessions: Sequence[SessionView], zone: ZoneInfo) -> list[SessionGroup]:
    """Neighbours under one heading, in the viewer's days."""
    today = now().astimezone(zone).date()
    groups: list[SessionGroup] = []
    for session in sessions:
        day = _moment(session.active_at).astimezone(zone).date()
        label = _("Pinned") if session.pinned else day_label(day, today)
        if not groups or groups[-1].label != label:
            month = "" if session.pinned or (today - day).days < RECENT_DAYS else f"{day:%Y-%m}"
            groups.append(SessionGroup(label=label, month=month, sessions=[]))
        groups[-1].sessions.append(session)
    return groups


def day_label(day: date, today: date) -> str:
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
