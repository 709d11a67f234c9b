"""The owner goes on instead of deciding, or never decides: the paused turn ends, whole (A11.8, A11.9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.db import transaction

from copilot import approvals, turns
from copilot.agent.mending import close_open
from copilot.dispatch.following import after_turn
from copilot.dispatch.telling import owner_of, publish
from copilot.events import ApprovalDecided, Event, TurnCancelled
from copilot.live import lease
from copilot.turns import Ended, Opened, Opening, Paused

Told = list[tuple[Event, str | None]]

CONTINUED = "Not executed: abandoned, the user continued."
EXPIRED = "Not executed: abandoned, nobody decided in time."


@dataclass(frozen=True, kw_only=True)
class GivenWay:
    """The paused turn has ended; `opened` is None when messages wait that must go before this one."""

    opened: Opened | None


def give_way(opening: Opening, user_id: int) -> GivenWay | None:
    """End the turn that waits and open this one, in one transaction; None when no turn waits any more."""
    with transaction.atomic():
        paused = turns.hold_waiting(session_id=opening.session_id)
        if paused is None:
            return None
        ended, happened = _abandon(paused, "the user continued", CONTINUED, by="user")
        opened = turns.open_turn(opening)
    fence = paused.fence if opened is None else opened.fence
    lease.take_over(
        str(opening.session_id), turn_id=str(opening.turn_id), token=str(opening.token), fence=fence
    )
    publish(opening.session_id, user_id, [*happened, _ending(paused, ended)])
    return GivenWay(opened=opened)


def expire(turn_id: UUID) -> bool:
    """Nobody decided in time: what waits behind the turn goes on (A11.9)."""
    with transaction.atomic():
        paused = turns.hold_waiting(turn_id=turn_id)
        if paused is None:
            return False
        ended, happened = _abandon(paused, "expired", EXPIRED, by="expiry")
    happened += [_ending(paused, ended), *((news, None) for news in ended.news())]
    publish(paused.session_id, owner_of(paused.session_id), happened)
    after_turn(paused.session_id, paused.token, None)
    return True


def _abandon(paused: Paused, why: str, result: str, *, by: Literal["user", "expiry"]) -> tuple[Ended, Told]:
    happened: Told = [
        (event, str(paused.turn_id))
        for event in close_open(paused.session_id, paused.turn_id, result, cancelled=True)
    ]
    for row in approvals.close(paused.turn_id, "abandoned", why):
        state: Literal["abandoned", "cancelled"] = "abandoned" if row.state == "abandoned" else "cancelled"
        happened.append((ApprovalDecided(approval_id=str(row.pk), state=state, by=by), str(paused.turn_id)))
    return turns.end(paused.turn_id, paused.fence, turns.CANCELLED, reason="abandoned"), happened


def _ending(paused: Paused, ended: Ended) -> tuple[Event, str | None]:
    return TurnCancelled(run_ids=ended.run_ids, reason="abandoned"), str(paused.turn_id)
