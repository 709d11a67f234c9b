"""Pause turns for approvals, and decide them."""

from __future__ import annotations

from typing import Any, Literal

from copilot.chat import approval_decisions
from copilot.chat.commands import DecideApproval
from copilot.models import Approval, Session, Turn
from tests.support.turn_engine import lease_of, told, until


def wait_until_turn_paused(session: Session) -> Turn:
    """Wait until the session's turn has paused for a person and released its lease."""
    until(lambda: told(session.pk, "turn.paused") and lease_of(session) == {})
    return Turn.objects.get(session=session, status="waiting")


def list_open_approvals(session: Session) -> list[Approval]:
    return list(Approval.objects.filter(session=session, state="requested").order_by("position"))


def approve_requests(*rows: Approval, **fields: Any) -> approval_decisions.DecisionResult:
    return decide("approve", *rows, **fields)


def reject_requests(*rows: Approval, **fields: Any) -> approval_decisions.DecisionResult:
    return decide("reject", *rows, **fields)


def decide(
    decision: Literal["approve", "reject"], *rows: Approval, **fields: Any
) -> approval_decisions.DecisionResult:
    owner = rows[0].session.owner_id
    decisions = [DecideApproval(approval_id=row.pk, decision=decision, **fields) for row in rows]
    return approval_decisions.decide_approvals(owner, decisions)
