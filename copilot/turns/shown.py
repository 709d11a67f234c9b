"""What other apps may show of one turn: its rows, the files it made, and what a person was or is asked in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

from copilot import artifacts, awaited, queries
from copilot.events import ApprovalView, ArtifactView, MessageView, QuestionView
from copilot.models import Approval, Message, Question


@dataclass(frozen=True, kw_only=True)
class Asked:
    """With each its state: `requested` and `open` wait for an answer, every other word says how it went."""

    approvals: list[tuple[ApprovalView, str]]
    questions: list[tuple[QuestionView, str]]


def rows_of(turn_id: UUID) -> list[MessageView]:
    """All that is shown of it, with what the log holds beyond the rows that still grow."""
    found = Message.objects.filter(turn=turn_id, hidden="", kind__in=queries.SHOWN_KINDS)
    rows = list(found.exclude(kind=Message.Kind.USER).order_by("sequence"))
    views = [queries.message_view(row) for row in rows]
    growing = {row.id: row.content for row in views if row.streaming and isinstance(row.content, str)}
    if not growing:
        return views
    present = queries.present_text(str(rows[0].session_id), growing)
    return [replace(row, content=present[row.id]) if row.id in present else row for row in views]


def files_of(turn_id: UUID) -> list[ArtifactView]:
    """What its tools have made and left."""
    return artifacts.of_turn(turn_id)


def asked_in(turn_id: UUID) -> Asked:
    """What was approved by itself was asked of nobody."""
    rows = list(Approval.objects.filter(turn=turn_id, automatic=False).order_by("created_at", "position"))
    questions = Question.objects.filter(turn=turn_id).order_by("created_at")
    states = [row.state for row in rows]
    return Asked(
        approvals=list(zip(awaited.approval_views(rows), states, strict=True)),
        questions=[(awaited.question_view(row), row.outcome) for row in questions],
    )
