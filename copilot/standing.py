"""What a session works towards and how full its model's window is, as clients see them (A30.4, A17.8)."""

from __future__ import annotations

import msgspec

from copilot.events import ContextUse, ContextView, GoalState, GoalView
from copilot.models import Session


def goal_of(session: Session) -> GoalView | None:
    if not session.goal_state:
        return None
    return GoalView(
        text=session.goal,
        state=msgspec.convert(session.goal_state, GoalState),
        reason=session.goal_reason,
        continuations=session.goal_continuations,
    )


def context_of(session: Session) -> ContextView:
    return msgspec.convert(session.context, ContextUse).view()
