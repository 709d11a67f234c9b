"""Stop: what the session accepted before it, and nothing after (T7)."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.db import transaction

from config.core.errors import Conflict, TurnConflict
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.chat import approvals, goals, queue, selectors, sessions, turn_transitions, turns
from copilot.chat.announcements import (
    announce_cancelled_turn,
    announce_unstarted_turn,
    get_session_owner_id,
    publish_events,
)
from copilot.chat.next_turn import queue_member_of, release_or_start_next
from copilot.chat.permissions import Permissions
from copilot.models import Message, Turn
from copilot.realtime import lease, stop_signal
from copilot.realtime.events import CancelReason, Event, TurnCancelled


@dataclass(frozen=True, kw_only=True)
class StopResult:
    turn_id: UUID | None
    state: Literal["stopping", "idle"]


log = logging.getLogger(__name__)

NEXT_TURN_TIMEOUT_SECONDS = 1.0  # a turn follows another within milliseconds


def stop_session(
    user_id: int,
    session_id: UUID,
    *,
    queue: Literal["keep", "drop"] = "keep",
    turn_id: UUID | None = None,
    by: CancelReason = "user",
) -> StopResult:
    """Stop what the session accepted before now; a message accepted later is never affected (T7)."""
    session = selectors.get_session(user_id, session_id)
    if session.goal_state == session.Goal.ACTIVE:
        pause_active_goal(user_id, session_id, "The turn was stopped.")
    stopping = turn_transitions.request_stop(session_id, turn_id, by=by)
    if stopping is None and turn_id is None:
        stopping = _stop_between_turns(session_id)
    if queue == "drop":
        drop_queued_messages(session_id, stopping.stop_through if stopping else None)
    if stopping is None:
        return StopResult(turn_id=None, state="idle")
    _signal_or_cancel(session_id, stopping)
    return StopResult(turn_id=stopping.turn_id, state="stopping")


def end_session_activity(session_id: UUID) -> None:
    """Whatever runs or waits in a session ends, whoever owns it: the session itself goes, or its owner does (S17)."""
    stopping = turn_transitions.request_stop(session_id)
    try:
        drop_queued_messages(session_id, None)
    except REDIS_OUTAGE_ERRORS:
        log.warning(
            "the queue of session %s was dropped in Postgres alone; the sweep mends the rest", session_id
        )
    if stopping is not None:
        _signal_or_cancel(session_id, stopping)


def stop_turn_as_staff(turn_id: UUID) -> turn_transitions.StopRequest | None:
    """Staff stop a turn with its owner's rights, whose session may be in the trash; None when it is over (D9)."""
    turn = Turn.objects.filter(pk=turn_id).select_related("session").first()
    if turn is None or (stopping := turn_transitions.request_stop(turn.session_id, turn_id)) is None:
        return None
    if turn.session.goal_state == turn.session.Goal.ACTIVE:
        pause_active_goal(turn.session.owner_id, turn.session_id, "The turn was stopped.")
    _signal_or_cancel(turn.session_id, stopping)
    return stopping


def delete_session_and_stop(user_id: int, session_id: UUID) -> None:
    """Out of every list first, so that nothing begins any more; then what runs in it is stopped."""
    for gone in sessions.delete_session(user_id, session_id):
        end_session_activity(gone)


def _signal_or_cancel(session_id: UUID, stopping: turn_transitions.StopRequest) -> None:
    """The mark for the worker that runs it, or the ending itself; then the same for what it started."""
    if stopping.status == Turn.Status.RUNNING or not cancel_turn_without_worker(session_id, stopping):
        try:
            stop_signal.signal_stop(str(session_id), str(stopping.turn_id))
        except REDIS_OUTAGE_ERRORS:
            log.warning("the stop of turn %s could not be broadcast; the sweep will end it", stopping.turn_id)
    stop_child_turns(stopping.turn_id)


def stop_child_turns(turn_id: UUID) -> None:
    """What a stopped turn started is stopped with it; what earlier turns started goes on (A21.6).

    Nothing joins them meanwhile: a prompt is accepted only while its parent is not stopped.
    """
    for session_id, message_id in queue.list_pending_of_parent(turn_id):
        drop_queued_messages(session_id, None, message_id, by="parent")
    started = Turn.objects.filter(parent=turn_id, status__in=Turn.UNFINISHED)
    for session_id, child_id in started.values_list("session_id", "pk"):
        if (stopping := turn_transitions.request_stop(session_id, child_id, by="parent")) is not None:
            _signal_or_cancel(session_id, stopping)


def pause_active_goal(user_id: int, session_id: UUID, why: str) -> None:
    """At once, for between two turns of a goal there is nothing else that a stop could reach (A30.4)."""
    try:
        goals.pause_goal(user_id, session_id, why)
    except Conflict:
        return  # it was achieved or changed just now


def _stop_between_turns(session_id: UUID) -> turn_transitions.StopRequest | None:
    """One turn has ended and the next is being opened for what is queued: the stop covers that too (T7.3)."""
    deadline = time.monotonic() + NEXT_TURN_TIMEOUT_SECONDS
    try:
        while lease.is_session_held(str(session_id)) and time.monotonic() < deadline:
            through = queue.get_last_pending_number(session_id)
            if through is not None:
                stop_signal.cover_queued_messages(str(session_id), through)
            if (stopping := turn_transitions.request_stop(session_id)) is not None:
                return stopping  # it was opened meanwhile, perhaps with the last message that waited
            if through is None:
                return None
            time.sleep(0.005)
    except REDIS_OUTAGE_ERRORS:
        log.warning("whether a turn follows cannot be seen: Redis is away")
    return None


def cancel_turn_without_worker(session_id: UUID, stopping: turn_transitions.StopRequest) -> bool:
    """End a turn that no worker runs, in the request itself; False when a worker was quicker."""
    waits = stopping.status == Turn.Status.WAITING
    try:
        with transaction.atomic():  # with its requests: nobody decides about a turn that is over (A11.9)
            ended = turn_transitions.end_turn(
                stopping.turn_id,
                stopping.fence,
                turns.CANCELLED,
                reason="user",
                unless_running=True,
                override=waits,
            )
            requests = approvals.close_approvals(stopping.turn_id, "cancelled") if waits else []
    except TurnConflict:
        return False
    if waits:
        _raise_fence_in_redis(session_id, stopping)
    else:
        announce_unstarted_turn(session_id, stopping.turn_id)
    announce_cancelled_turn(session_id, stopping.turn_id, ended, requests)
    release_or_start_next(session_id, stopping.token, ended.stop_through)
    return True


def _raise_fence_in_redis(session_id: UUID, stopping: turn_transitions.StopRequest) -> None:
    """The worker that paused may still be telling of it: nothing of that comes after the ending."""
    try:
        lease.take_over_lease(
            str(session_id),
            turn_id=str(stopping.turn_id),
            token=str(stopping.token),
            fence=stopping.fence + 1,
        )
    except REDIS_OUTAGE_ERRORS:
        log.warning("the fence of session %s could not be raised in Redis", session_id)


def drop_queued_messages(
    session_id: UUID, through: int | None, message_id: UUID | None = None, *, by: CancelReason = "user"
) -> int:
    """Let queued messages go, and say how many; each run_id among them gets its cancelled ending (T3.6, T7.4)."""
    dropped = queue.drop_pending_messages(session_id, through=through, message_id=message_id)
    if not dropped:
        return 0
    lease.remove_members(str(session_id), [queue_member_of(one) for one in dropped])
    happened: list[tuple[Event, str | None]] = [(selectors.get_queue(session_id), None)]
    for one in dropped:
        if one.run_id:
            message = Message.objects.get(pk=one.id)
            ended = turns.record_dropped_message(
                session_id,
                one.run_id,
                message.origin,
                Permissions.from_json(message.permissions),
                one.accept_number,
                by=by,
            )
            happened.append((TurnCancelled(run_ids=[one.run_id], reason=by), str(ended)))
    publish_events(session_id, get_session_owner_id(session_id), happened)
    return len(dropped)
