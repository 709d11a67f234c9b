"""Calls and questions that wait for a person, as clients see them (A11.3, A12)."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from copilot.events import ApprovalView, AutoApproveView, QuestionView, instant
from copilot.models import Approval, Question, Session
from copilot.previews import redacted_arguments


def open_approvals(session_id: UUID) -> list[ApprovalView]:
    rows = Approval.objects.filter(session=session_id, state=Approval.State.REQUESTED)
    return approval_views(rows.order_by("created_at", "position"))


def approval_views(rows: Iterable[Approval]) -> list[ApprovalView]:
    """Calls that wait, as their owner sees them; money only where a cap of his own is the reason (A19.8, B1.5)."""
    rows = list(rows)
    blocked = next((row.session_id for row in rows if row.block_reason), None)
    remaining = remaining_cap(blocked) if blocked is not None else None
    return [
        ApprovalView(
            id=str(row.pk),
            turn_id=str(row.turn_id),
            call_id=row.call_id,
            tool=row.tool,
            arguments=redacted_arguments(row.arguments),
            reason=row.reason,
            block_reason=row.block_reason,
            estimate_microdollars=row.estimate_microdollars,
            remaining_cap_microdollars=remaining if row.block_reason else None,
            can_always_allow=not row.manual_only,
        )
        for row in rows
    ]


def open_questions(session_id: UUID) -> list[QuestionView]:
    rows = Question.objects.filter(session=session_id, outcome=Question.Outcome.OPEN).order_by("created_at")
    return [question_view(row) for row in rows]


def question_view(row: Question) -> QuestionView:
    return QuestionView(
        id=str(row.pk),
        turn_id=str(row.turn_id),
        call_id=row.call_id,
        question=row.question,
        choices=list(row.choices),
        allow_text=row.allow_text,
        deadline=instant(row.deadline),
    )


def auto_approve_of(session: Session) -> AutoApproveView:
    """Of a sub-session its root may have switched it on for the whole family (A21.3)."""
    return AutoApproveView(
        enabled=session.auto_approve or _shared(session),
        cap_microdollars=min((cap for cap, _ in _caps(session)), default=session.auto_approve_cap),
        sub_sessions=session.auto_approve_children,
        inherited=_shared(session),
    )


def remaining_cap(session_id: UUID) -> int | None:
    return allowance(Session.objects.select_related("root").get(pk=session_id))


def allowance(session: Session) -> int | None:
    """What may still be spent unasked; None without a cap."""
    return min((max(0, cap - taken) for cap, taken in _caps(session)), default=None)


def _caps(session: Session) -> list[tuple[int, int]]:
    """Each cap that binds here and what is taken of it; none when nothing that costs was allowed here.

    A sub-session spends by a cap of its own, or by its root's where that is shared; and together they never spend
    more than their root may, whatever was allowed in one of them.
    """
    if not _shared(session) and (not session.auto_approve or session.auto_approve_cap is None):
        return []
    family = [session] if session.root is None else [session.root, session]
    return [
        (one.auto_approve_cap, one.auto_approve_taken)
        for one in family
        if one.auto_approve and one.auto_approve_cap is not None
    ]


def _shared(session: Session) -> bool:
    root = session.root
    return root is not None and root.auto_approve and root.auto_approve_children
