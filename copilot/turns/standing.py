"""What other apps may know of a turn: whose it is, how it stands, what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from copilot import usage
from copilot.models import Message, Turn


@dataclass(frozen=True, kw_only=True)
class TurnStanding:
    turn_id: UUID
    session_id: UUID
    owner_id: int
    status: str
    origin: str
    run_ids: tuple[str, ...]

    @property
    def is_over(self) -> bool:
        return self.status in Turn.ENDINGS


def standing(turn_id: UUID) -> TurnStanding | None:
    row = Turn.objects.filter(pk=turn_id).select_related("session").first()
    if row is None:
        return None
    return TurnStanding(
        turn_id=row.pk,
        session_id=row.session_id,
        owner_id=row.session.owner_id,
        status=row.status,
        origin=row.origin,
        run_ids=tuple(row.run_ids),
    )


def of_run(session_id: UUID, run_id: str) -> UUID | Literal["waiting", "gone"]:
    """The turn that took the message with this run_id; else whether it still waits for one."""
    row = (
        Message.objects.filter(session=session_id, run_id=run_id).values_list("turn_id", "dropped_at").first()
    )
    if row is None or row[1] is not None:
        return "gone"
    turn_id: UUID | None = row[0]
    return "waiting" if turn_id is None else turn_id


def cost_microdollars(turn_id: UUID) -> int:
    """As recorded so far, with that of its children (A19.1, A21.6)."""
    return usage.spending(turn_id).spent
