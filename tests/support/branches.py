"""Create conversations with several versions of a message."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from copilot.chat import branches, commands
from copilot.chat.admission_outcomes import SubmissionStarted
from copilot.chat.permissions import UNRESTRICTED
from copilot.models import Session
from tests.support.turn_engine import ended, quiet, say


def hold_conversation(session: Session, *texts: str) -> list[UUID]:
    """Send messages, wait for their answers, and return the ids of the messages."""
    found: list[UUID] = []
    for text in texts:
        outcome = say(session, text)
        ended(outcome.turn_id)
        quiet(session)
        found.append(outcome.message_id)
    return found


def resend(session: Session, message_id: UUID, text: str | None = None, **fields: Any) -> SubmissionStarted:
    given: dict[str, Any] = {
        "user_id": session.owner_id,
        "origin": "web",
        "permissions": UNRESTRICTED,
    } | fields
    return branches.resend_message(
        commands.ResendMessage(session_id=session.pk, message_id=message_id, text=text, **given)
    )


def resend_and_wait(session: Session, message_id: UUID, text: str | None = None, **fields: Any) -> UUID:
    """Resend a message, wait for the answer, and return the id of the new version."""
    outcome = resend(session, message_id, text, **fields)
    ended(outcome.turn_id)
    quiet(session)
    return outcome.message_id


def switch_branch(session: Session, message_id: UUID, branch: int) -> branches.BranchSwitchResult:
    return branches.switch_branch(session.owner_id, session.pk, message_id, branch)


def undo_last_turn(session: Session) -> branches.UndoResult:
    return branches.undo_last_turn(session.owner_id, session.pk)
