"""Set, pause, resume, clear and judge the goal that a session works towards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never
from uuid import UUID

import structlog
from django.conf import settings

from config.core.errors import Conflict, InvalidRequest, RequestRefused
from config.core.redis import REDIS_OUTAGE_ERRORS
from config.core.text import make_storable
from copilot.chat import selectors
from copilot.chat.admission import submit_message
from copilot.chat.admission_outcomes import SubmissionQueued, SubmissionStarted
from copilot.chat.commands import SendMessage
from copilot.chat.permissions import Permissions, PermissionsJSON
from copilot.chat.prompt_tags import strip_server_tags
from copilot.models import Session
from copilot.realtime import event_log
from copilot.realtime.events import GoalJudged
from copilot.realtime.payloads import GoalState

log = structlog.get_logger(__name__)

GOAL_AUTHOR = "goal"  # marks a message as the server's own
MAX_GOAL_CHARACTERS = 2_000
MAX_GOAL_REASON_CHARACTERS = 500


def format_goal_message(goal: str, step: str = "") -> str:
    text = f"Go on towards the goal: {goal}"
    return f"{text}\n\nNext step: {step}" if step else text


def set_goal(owner_id: int, session_id: UUID, text: str, permissions: Permissions) -> Session:
    text = strip_server_tags(make_storable(text)).strip()
    if not 0 < len(text) <= MAX_GOAL_CHARACTERS:
        raise InvalidRequest(f"Goals must be 1 to {MAX_GOAL_CHARACTERS:,} characters.", code="invalid_goal")
    return _change_goal(
        owner_id,
        session_id,
        "active",
        allowed_states=None,
        goal=text,
        goal_reason="",
        goal_continuations=0,
        goal_permissions=permissions.to_json(),
    )


def pause_goal(owner_id: int, session_id: UUID, reason: str) -> Session:
    return _change_goal(
        owner_id,
        session_id,
        "paused",
        allowed_states=(Session.Goal.ACTIVE,),
        goal_reason=reason[:MAX_GOAL_REASON_CHARACTERS],
    )


def resume_goal(owner_id: int, session_id: UUID) -> Session:
    resumable = (Session.Goal.PAUSED, Session.Goal.EXHAUSTED)
    return _change_goal(
        owner_id,
        session_id,
        "active",
        allowed_states=resumable,
        goal_reason="",
        goal_continuations=0,
    )


def clear_goal(owner_id: int, session_id: UUID) -> Session:
    return _change_goal(
        owner_id,
        session_id,
        "cleared",
        allowed_states=tuple(Session.Goal),
        goal="",
        goal_reason="",
        goal_continuations=0,
    )


def _change_goal(
    owner_id: int,
    session_id: UUID,
    state: GoalState,
    *,
    allowed_states: Sequence[str] | None,
    **fields: str | int | PermissionsJSON,
) -> Session:
    """Apply the owner's decision if the goal is in one of `allowed_states`; None allows any state."""
    session = selectors.get_session(owner_id, session_id)
    rows = Session.objects.filter(pk=session_id)
    stored = "" if state == "cleared" else state
    if not (rows if allowed_states is None else rows.filter(goal_state__in=allowed_states)).update(
        goal_state=stored, **fields
    ):
        raise Conflict("This chat has no goal that can be changed like this.", code="no_such_goal")
    session.refresh_from_db()
    _publish_goal(session, state)
    return session


def record_goal_judgement(session_id: UUID, goal: str, state: GoalState, reason: str) -> bool:
    unchanged = Session.objects.filter(pk=session_id, goal=goal, goal_state=Session.Goal.ACTIVE)
    if not unchanged.update(goal_state=state, goal_reason=reason[:MAX_GOAL_REASON_CHARACTERS]):
        return False
    _publish_goal(Session.objects.get(pk=session_id), state)
    return True


def count_goal_continuation(session_id: UUID, goal: str, number: int, reason: str) -> bool:
    """Count a continuation before it is submitted, so that each number is submitted only once."""
    unchanged = Session.objects.filter(
        pk=session_id, goal=goal, goal_state=Session.Goal.ACTIVE, goal_continuations=number - 1
    )
    return bool(unchanged.update(goal_continuations=number, goal_reason=reason[:MAX_GOAL_REASON_CHARACTERS]))


def _publish_goal(session: Session, state: GoalState) -> None:
    judged = GoalJudged(state=state, reason=session.goal_reason, text=session.goal)
    try:
        event_log.append_events(str(session.pk), [(judged, None)], user_id=session.owner_id)
    except REDIS_OUTAGE_ERRORS:
        log.warning("goal_event_not_published", session_id=session.pk, state=state)


# --- Commands of the owner ---------------------------------------------------------------------------

GoalAction = Literal["pause", "resume", "clear"]


@dataclass(frozen=True, kw_only=True)
class GoalStatus:
    """`state` is empty without a goal; `turn_id` is the turn that was started for it, if one was."""

    goal: str
    state: str
    reason: str
    continuations: int
    most: int
    turn_id: UUID | None = None


def get_goal_status(user_id: int, session_id: UUID) -> GoalStatus:
    return _build_goal_status(selectors.get_session(user_id, session_id))


def set_goal_and_start(message: SendMessage) -> GoalStatus:
    """Set `message.text` as the goal and submit it; if it is refused, the goal is paused."""
    session = set_goal(message.user_id, message.session_id, message.text, message.permissions)
    return _submit_goal_message(session, replace(message, text=session.goal))


def change_goal_state(message: SendMessage, action: GoalAction) -> GoalStatus:
    """Pause, resume or clear the goal. The text of `message` is ignored."""
    user_id, session_id = message.user_id, message.session_id
    match action:
        case "pause":
            return _build_goal_status(pause_goal(user_id, session_id, "Paused by the user."))
        case "clear":
            return _build_goal_status(clear_goal(user_id, session_id))
        case "resume":
            session = resume_goal(user_id, session_id)
            if selectors.get_session_state(session_id) != "idle":
                return _build_goal_status(session)  # the turn that runs will be judged at its end
            goal_message = replace(message, text=format_goal_message(session.goal), author=GOAL_AUTHOR)
            return _submit_goal_message(session, goal_message)
        case unreachable:
            assert_never(unreachable)


def _submit_goal_message(session: Session, message: SendMessage) -> GoalStatus:
    try:
        outcome: SubmissionStarted | SubmissionQueued = submit_message(message)
    except RequestRefused as refusal:
        pause_goal(message.user_id, session.pk, f"It could not go on: {refusal.message}")
        raise
    return replace(_build_goal_status(session), turn_id=outcome.turn_id)


def _build_goal_status(session: Session) -> GoalStatus:
    return GoalStatus(
        goal=session.goal,
        state=session.goal_state,
        reason=session.goal_reason,
        continuations=session.goal_continuations,
        most=settings.GOAL_CONTINUATIONS,
    )
