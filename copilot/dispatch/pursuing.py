"""A person sets a goal, or says what becomes of it; the first turn towards it starts at once (A30.4)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, assert_never
from uuid import UUID

from django.conf import settings

from copilot import queries, sessions
from copilot.agent import goals
from copilot.commands import SendMessage
from copilot.dispatch.admission import submit
from copilot.dispatch.answers import Queued, Started
from copilot.errors import Refused
from copilot.models import Session

GoalAct = Literal["pause", "resume", "clear"]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """`state` is empty when there is none; `turn_id` names the turn that works on it now, if one was started."""

    goal: str
    state: str
    reason: str
    continuations: int
    most: int
    turn_id: UUID | None = None


def goal_of(user_id: int, session_id: UUID) -> Goal:
    return _shown(queries.session_of(user_id, session_id))


def set_goal(message: SendMessage) -> Goal:
    """`message.text` is the goal, and is said to the agent like anything else; unsaid, it rests."""
    session = sessions.set_goal(message.user_id, message.session_id, message.text, message.permissions)
    return _said(session, replace(message, text=session.goal))


def change_goal(message: SendMessage, act: GoalAct) -> Goal:
    """Of `message` only who speaks, where and by which way in matters; its text is not read."""
    user_id, session_id = message.user_id, message.session_id
    match act:
        case "pause":
            return _shown(sessions.pause_goal(user_id, session_id, "Paused by the user."))
        case "clear":
            return _shown(sessions.clear_goal(user_id, session_id))
        case "resume":
            session = sessions.resume_goal(user_id, session_id)
            if queries.state_of(session_id) != "idle":
                return _shown(session)  # the turn that runs will be judged at its end
            again = replace(message, text=goals.next_message(session.goal), author=goals.AUTHOR)
            return _said(session, again)
        case unreachable:
            assert_never(unreachable)


def _said(session: Session, message: SendMessage) -> Goal:
    try:
        outcome: Started | Queued = submit(message)
    except Refused as refusal:
        sessions.pause_goal(message.user_id, session.pk, f"It could not go on: {refusal.message}")
        raise
    return replace(_shown(session), turn_id=outcome.turn_id)


def _shown(session: Session) -> Goal:
    return Goal(
        goal=session.goal,
        state=session.goal_state,
        reason=session.goal_reason,
        continuations=session.goal_continuations,
        most=settings.GOAL_CONTINUATIONS,
    )
