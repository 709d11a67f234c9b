"""Stop a session's turn and whatever it started, without touching messages accepted after the stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import structlog
from django.db import transaction

from config.core.errors import Conflict, TurnConflict
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.chat import approvals, follow_ups, goals, queue, selectors, sessions, turn_transitions, turns
from copilot.chat.announcements import (
    announce_cancelled_turn,
    announce_unstarted_turn,
    get_session_owner_id,
    publish_events,
)
from copilot.chat.next_turn import queue_member_of, release_or_start_next
from copilot.chat.permissions import Permissions
from copilot.models import Message, Turn
from copilot.realtime import lease, worker_signals
from copilot.realtime.events import CancelReason, Event, TurnCancelled

log = structlog.get_logger(__name__)

NEXT_TURN_TIMEOUT_SECONDS = 1.0  # a turn follows another within milliseconds


@dataclass(frozen=True, kw_only=True)
class StopResult:
    turn_id: UUID | None
    state: Literal["stopping", "idle"]


def stop_session(
    user_id: int,
    session_id: UUID,
    *,
    queue: Literal["keep", "drop"] = "keep",
    turn_id: UUID | None = None,
    by: CancelReason = "user",
) -> StopResult:
    """Stop what the session accepted before now; a message accepted later is never affected."""
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
    stopping = turn_transitions.request_stop(session_id)
    try:
        drop_queued_messages(session_id, None)
    except REDIS_OUTAGE_ERRORS:
        log.warning("queue_not_dropped_in_redis", session_id=session_id)  # the sweep repairs it
    if stopping is not None:
        _signal_or_cancel(session_id, stopping)


def stop_turn_as_staff(turn_id: UUID) -> turn_transitions.StopRequest | None:
    turn = Turn.objects.filter(pk=turn_id).select_related("session").first()
    if turn is None or (stopping := turn_transitions.request_stop(turn.session_id, turn_id)) is None:
        return None
    if turn.session.goal_state == turn.session.Goal.ACTIVE:
        pause_active_goal(turn.session.owner_id, turn.session_id, "The turn was stopped.")
    _signal_or_cancel(turn.session_id, stopping)
    return stopping


def delete_session_and_stop(user_id: int, session_id: UUID) -> None:
    """Delete the session first, so that nothing new starts in it, then stop what runs in it."""
    for deleted_id in sessions.delete_session(user_id, session_id):
        end_session_activity(deleted_id)


def delete_answered_sessions(answered: Sequence[tuple[int, UUID]]) -> list[None]:
    """Delete unlisted sessions, given as owner and id, whose turn has ended, and stop what their tools left running."""
    for sub_session_id in sessions.delete_unlisted_sessions(answered):
        end_session_activity(sub_session_id)
    return [None] * len(answered)


def _signal_or_cancel(session_id: UUID, stopping: turn_transitions.StopRequest) -> None:
    """Signal the worker that runs the turn, or end the turn here; then do the same for its child turns."""
    if stopping.status == Turn.Status.RUNNING or not cancel_turn_without_worker(session_id, stopping):
        try:
            worker_signals.signal_stop(str(session_id), str(stopping.turn_id))
        except REDIS_OUTAGE_ERRORS:
            # The sweep ends the turn once Redis is back.
            log.warning("stop_signal_failed", session_id=session_id, turn_id=stopping.turn_id)
    stop_child_turns(stopping.turn_id)


def stop_child_turns(turn_id: UUID) -> None:
    """Stop what a stopped turn started; what earlier turns started continues.

    Nothing joins them meanwhile: a sub-session's prompt is accepted only while its parent is not stopped.
    """
    for session_id, message_id in queue.list_pending_of_parent(turn_id):
        drop_queued_messages(session_id, None, message_id, by="parent")
    started = Turn.objects.unfinished().filter(parent=turn_id)
    for session_id, child_id in started.values_list("session_id", "pk"):
        if (stopping := turn_transitions.request_stop(session_id, child_id, by="parent")) is not None:
            _signal_or_cancel(session_id, stopping)


def pause_active_goal(user_id: int, session_id: UUID, reason: str) -> None:
    """Pause the goal at once, because between two of its turns there is nothing else a stop could reach."""
    try:
        goals.pause_goal(user_id, session_id, reason)
    except Conflict:
        return  # it was achieved or changed just now


def _stop_between_turns(session_id: UUID) -> turn_transitions.StopRequest | None:
    """Stop a turn that is just being opened for queued messages, after the one before it has ended."""
    deadline = time.monotonic() + NEXT_TURN_TIMEOUT_SECONDS
    try:
        while lease.is_session_held(str(session_id)) and time.monotonic() < deadline:
            through = queue.get_last_pending_number(session_id)
            if through is not None:
                worker_signals.cover_queued_messages(str(session_id), through)
            if (stopping := turn_transitions.request_stop(session_id)) is not None:
                return stopping  # it was opened in the meantime, perhaps with the last queued message
            if through is None:
                return None
            time.sleep(0.005)
    except REDIS_OUTAGE_ERRORS:
        log.warning("stop_between_turns_failed", session_id=session_id)
    return None


def cancel_turn_without_worker(session_id: UUID, stopping: turn_transitions.StopRequest) -> bool:
    waits = stopping.status == Turn.Status.WAITING
    try:
        with transaction.atomic():  # its approvals close with it: nobody may decide about an ended turn
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
    """Void the events of the worker that paused, so that none of them follows the ending."""
    try:
        lease.take_over_lease(
            str(session_id),
            turn_id=str(stopping.turn_id),
            token=str(stopping.token),
            fence=stopping.fence + 1,
        )
    except REDIS_OUTAGE_ERRORS:
        log.warning("fence_not_raised_in_redis", session_id=session_id, turn_id=stopping.turn_id)


def drop_queued_messages(
    session_id: UUID, through: int | None, message_id: UUID | None = None, *, by: CancelReason = "user"
) -> int:
    """Drop queued messages and return how many; each run_id among them gets a cancelled turn."""
    dropped = queue.drop_pending_messages(session_id, through=through, message_id=message_id)
    if not dropped:
        return 0
    lease.remove_members(str(session_id), [queue_member_of(pending) for pending in dropped])
    events: list[tuple[Event, str | None]] = [(selectors.get_queue(session_id), None)]
    for pending in dropped:
        if pending.run_id:
            message = Message.objects.get(pk=pending.id)
            turn_id = turns.record_dropped_message(
                session_id,
                pending.run_id,
                message.origin,
                Permissions.from_json(message.permissions),
                pending.accept_number,
                by=by,
            )
            events.append((TurnCancelled(run_ids=[pending.run_id], reason=by), str(turn_id)))
    publish_events(session_id, get_session_owner_id(session_id), events)
    follow_ups.enqueue_for_child(session_id)
    return len(dropped)
