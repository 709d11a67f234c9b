"""Goals that a session works towards (A30.4)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from copilot import queries
from copilot.errors import Conflict, InvalidRequest
from copilot.events import GoalJudged, GoalState
from copilot.live import stream
from copilot.live.client import RedisDown
from copilot.models import Session
from copilot.permissions import Permissions, PermissionsJSON
from copilot.rows import storable
from copilot.tags import strip_server_tags

log = logging.getLogger(__name__)

GOAL_CHARACTERS = 2_000
REASON_CHARACTERS = 500


def set_goal(owner_id: int, session_id: UUID, text: str, permissions: Permissions) -> Session:
    """A goal to work towards from now on, within `permissions`; it replaces an older one."""
    text = strip_server_tags(storable(text)).strip()
    if not 0 < len(text) <= GOAL_CHARACTERS:
        raise InvalidRequest(f"A goal has 1 to {GOAL_CHARACTERS:,} characters.", code="invalid_goal")
    return _steered(
        owner_id,
        session_id,
        "active",
        had=None,
        goal=text,
        goal_reason="",
        goal_continuations=0,
        goal_permissions=permissions.to_json(),
    )


def pause_goal(owner_id: int, session_id: UUID, reason: str) -> Session:
    return _steered(
        owner_id, session_id, "paused", had=(Session.Goal.ACTIVE,), goal_reason=reason[:REASON_CHARACTERS]
    )


def resume_goal(owner_id: int, session_id: UUID) -> Session:
    """With all its continuations again."""
    rests = (Session.Goal.PAUSED, Session.Goal.EXHAUSTED)
    return _steered(owner_id, session_id, "active", had=rests, goal_reason="", goal_continuations=0)


def clear_goal(owner_id: int, session_id: UUID) -> Session:
    return _steered(
        owner_id,
        session_id,
        "cleared",
        had=tuple(Session.Goal),
        goal="",
        goal_reason="",
        goal_continuations=0,
    )


def _steered(
    owner_id: int,
    session_id: UUID,
    state: GoalState,
    *,
    had: Sequence[str] | None,
    **fields: str | int | PermissionsJSON,
) -> Session:
    """Its person's word; `had` names the states it may be said in."""
    session = queries.session_of(owner_id, session_id)
    rows = Session.objects.filter(pk=session_id)
    stored = "" if state == "cleared" else state
    if not (rows if had is None else rows.filter(goal_state__in=had)).update(goal_state=stored, **fields):
        raise Conflict("The session has no goal of which this could be said.", code="no_such_goal")
    session.refresh_from_db()
    _tell_goal(session, state)
    return session


def goal_judged(session_id: UUID, goal: str, state: GoalState, why: str) -> bool:
    """What came of a goal, unless its person changed it meanwhile."""
    still = Session.objects.filter(pk=session_id, goal=goal, goal_state=Session.Goal.ACTIVE)
    if not still.update(goal_state=state, goal_reason=why[:REASON_CHARACTERS]):
        return False
    _tell_goal(Session.objects.get(pk=session_id), state)
    return True


def goal_continued(session_id: UUID, goal: str, number: int, why: str) -> bool:
    """Count a continuation before it is said: however often this is tried, each number is said once."""
    still = Session.objects.filter(
        pk=session_id, goal=goal, goal_state=Session.Goal.ACTIVE, goal_continuations=number - 1
    )
    return bool(still.update(goal_continuations=number, goal_reason=why[:REASON_CHARACTERS]))


def _tell_goal(session: Session, state: GoalState) -> None:
    judged = GoalJudged(state=state, reason=session.goal_reason, text=session.goal)
    try:
        stream.publish_now(str(session.pk), [(judged, None)], user_id=session.owner_id)
    except RedisDown:
        log.warning("the event log is unreachable; a goal was judged without being told")
