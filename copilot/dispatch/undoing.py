"""The last turn, taken back (A30.5)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from copilot import history, queries
from copilot.agent import prefixes
from copilot.dispatch.holding import hold
from copilot.dispatch.stopping import pause_goal, stop
from copilot.dispatch.telling import publish_page
from copilot.live import stream
from copilot.models import Turn

NOT_UNDONE = (
    "The last turn is out of the conversation. "
    "What its tools did outside of it — files, messages, purchases — is not undone."
)


@dataclass(frozen=True, kw_only=True)
class Undone:
    turn_id: UUID | None
    text: str  # what the user had said in it
    message: str
    cursor: str


def undo(user_id: int, session_id: UUID) -> Undone:
    """Rows of the last shown turn are marked undone and kept; a turn that waits for approval is cancelled first."""
    session = queries.session_of(user_id, session_id)
    paused = Turn.objects.filter(session=session_id, status=Turn.Status.WAITING).first()
    if paused is not None:
        stop(user_id, session_id, turn_id=paused.pk)
    held = hold(session_id)
    try:
        undone = history.undo(session_id)
        prefixes.broken("undo", session_id)
        if session.goal_state == session.Goal.ACTIVE:
            pause_goal(user_id, session_id, "The last turn was undone.")
        publish_page(session_id)
        cursor = stream.last_cursor(str(session_id))
    finally:
        held.let_go()
    return Undone(turn_id=undone.turn_id, text=undone.text, message=NOT_UNDONE, cursor=cursor)
