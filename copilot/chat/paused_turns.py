"""End a paused turn that nobody decides about: its owner sent another message, or its time ran out."""

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
    """The paused turn has ended; `opened` is None when other messages must go before the new one."""

    opened: OpenedTurn | None


def replace_paused_turn(new_turn: NewTurn, user_id: int) -> PausedTurnReplaced | None:
    with transaction.atomic():
        paused = turn_transitions.lock_paused_turn(session_id=new_turn.session_id)
        if paused is None:
            return None
        ended, events = _end_as_abandoned(paused, "the user continued", ABANDONED_BY_USER_RESULT, by="user")
        opened = turns.open_turn(new_turn)
    fence = paused.fence if opened is None else opened.fence
    lease.take_over_lease(
        str(new_turn.session_id), turn_id=str(new_turn.turn_id), token=str(new_turn.token), fence=fence
    )
    publish_events(new_turn.session_id, user_id, [*events, _build_ending_event(paused, ended)])
    return PausedTurnReplaced(opened=opened)


def expire_paused_turn(turn_id: UUID) -> bool:
    with transaction.atomic():
        paused = turn_transitions.lock_paused_turn(turn_id=turn_id)
        if paused is None:
            return False
        ended, events = _end_as_abandoned(paused, "expired", EXPIRED_RESULT, by="expiry")
    events += [_build_ending_event(paused, ended), *((news, None) for news in ended.build_session_events())]
    publish_events(paused.session_id, get_session_owner_id(paused.session_id), events)
    release_or_start_next(paused.session_id, paused.token, None)
    return True


def _end_as_abandoned(
    paused: PausedTurn, feedback: str, result: str, *, by: Literal["user", "expiry"]
) -> tuple[EndedTurn, PendingEvents]:
    events: PendingEvents = [
        (event, str(paused.turn_id))
        for event in close_unfinished_work(paused.session_id, paused.turn_id, result, cancelled=True)
    ]
    for row in approvals.close_approvals(paused.turn_id, "abandoned", feedback):
        state: Literal["abandoned", "cancelled"] = "abandoned" if row.state == "abandoned" else "cancelled"
        events.append((ApprovalDecided(approval_id=str(row.pk), state=state, by=by), str(paused.turn_id)))
    return turn_transitions.end_turn(
        paused.turn_id, paused.fence, turns.CANCELLED, reason="abandoned"
    ), events


def _build_ending_event(paused: PausedTurn, ended: EndedTurn) -> tuple[Event, str | None]:
    return TurnCancelled(run_ids=ended.run_ids, reason="abandoned"), str(paused.turn_id)
