"""The owner goes on instead of deciding, or never decides: the paused turn ends, whole (A11.8, A11.9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.db import transaction

from copilot.agent.resume import close_unfinished_work
from copilot.chat import approvals, turn_transitions, turns
from copilot.chat.announcements import get_session_owner_id, publish_events
from copilot.chat.next_turn import release_or_start_next
from copilot.chat.turn_transitions import EndedTurn, PausedTurn
from copilot.chat.turns import NewTurn, OpenedTurn
from copilot.realtime import lease
from copilot.realtime.events import ApprovalDecided, Event, TurnCancelled

PendingEvents = list[tuple[Event, str | None]]

ABANDONED_BY_USER_RESULT = "Not executed: abandoned, the user continued."
EXPIRED_RESULT = "Not executed: abandoned, nobody decided in time."


@dataclass(frozen=True, kw_only=True)
class PausedTurnReplaced:
    """The paused turn has ended; `opened` is None when messages wait that must go before this one."""

    opened: OpenedTurn | None


def replace_paused_turn(opening: NewTurn, user_id: int) -> PausedTurnReplaced | None:
    """End the turn that waits and open this one, in one transaction; None when no turn waits any more."""
    with transaction.atomic():
        paused = turn_transitions.lock_paused_turn(session_id=opening.session_id)
        if paused is None:
            return None
        ended, happened = _end_as_abandoned(paused, "the user continued", ABANDONED_BY_USER_RESULT, by="user")
        opened = turns.open_turn(opening)
    fence = paused.fence if opened is None else opened.fence
    lease.take_over_lease(
        str(opening.session_id), turn_id=str(opening.turn_id), token=str(opening.token), fence=fence
    )
    publish_events(opening.session_id, user_id, [*happened, _build_ending_event(paused, ended)])
    return PausedTurnReplaced(opened=opened)


def expire_paused_turn(turn_id: UUID) -> bool:
    """Nobody decided in time: what waits behind the turn goes on (A11.9)."""
    with transaction.atomic():
        paused = turn_transitions.lock_paused_turn(turn_id=turn_id)
        if paused is None:
            return False
        ended, happened = _end_as_abandoned(paused, "expired", EXPIRED_RESULT, by="expiry")
    happened += [_build_ending_event(paused, ended), *((news, None) for news in ended.build_session_events())]
    publish_events(paused.session_id, get_session_owner_id(paused.session_id), happened)
    release_or_start_next(paused.session_id, paused.token, None)
    return True


def _end_as_abandoned(
    paused: PausedTurn, why: str, result: str, *, by: Literal["user", "expiry"]
) -> tuple[EndedTurn, PendingEvents]:
    happened: PendingEvents = [
        (event, str(paused.turn_id))
        for event in close_unfinished_work(paused.session_id, paused.turn_id, result, cancelled=True)
    ]
    for row in approvals.close_approvals(paused.turn_id, "abandoned", why):
        state: Literal["abandoned", "cancelled"] = "abandoned" if row.state == "abandoned" else "cancelled"
        happened.append((ApprovalDecided(approval_id=str(row.pk), state=state, by=by), str(paused.turn_id)))
    return turn_transitions.end_turn(
        paused.turn_id, paused.fence, turns.CANCELLED, reason="abandoned"
    ), happened


def _build_ending_event(paused: PausedTurn, ended: EndedTurn) -> tuple[Event, str | None]:
    return TurnCancelled(run_ids=ended.run_ids, reason="abandoned"), str(paused.turn_id)
