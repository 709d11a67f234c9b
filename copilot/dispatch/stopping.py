"""Stop: what the session accepted before it, and nothing after (T7)."""

from __future__ import annotations

import logging
import time
from typing import Literal
from uuid import UUID

from django.db import transaction

from copilot import approvals, history, queries, sessions, turns
from copilot.dispatch.answers import Stopped
from copilot.dispatch.following import after_turn, member_of
from copilot.dispatch.telling import announce_cancelled, announce_unannounced, owner_of, publish
from copilot.errors import Conflict, TurnConflict
from copilot.events import CancelReason, Event, TurnCancelled
from copilot.live import lease
from copilot.live import stop as stops
from copilot.live.client import RedisDown
from copilot.models import Message, Turn
from copilot.permissions import Permissions

log = logging.getLogger(__name__)

BETWEEN_SECONDS = 1.0  # a turn follows another within milliseconds


def stop(
    user_id: int,
    session_id: UUID,
    *,
    queue: Literal["keep", "drop"] = "keep",
    turn_id: UUID | None = None,
    by: CancelReason = "user",
) -> Stopped:
    """Stop what the session accepted before now; a message accepted later is never affected (T7)."""
    session = queries.session_of(user_id, session_id)
    if session.goal_state == session.Goal.ACTIVE:
        pause_goal(user_id, session_id, "The turn was stopped.")
    stopping = turns.request_stop(session_id, turn_id, by=by)
    if stopping is None and turn_id is None:
        stopping = _between_turns(session_id)
    if queue == "drop":
        drop_queue(session_id, stopping.through if stopping else None)
    if stopping is None:
        return Stopped(turn_id=None, state="idle")
    _carry_out(session_id, stopping)
    return Stopped(turn_id=stopping.turn_id, state="stopping")


def halt(session_id: UUID) -> None:
    """Whatever runs or waits in a session ends, whoever owns it: the session itself goes, or its owner does (S17)."""
    stopping = turns.request_stop(session_id)
    try:
        drop_queue(session_id, None)
    except RedisDown:
        log.warning(
            "the queue of session %s was dropped in Postgres alone; the sweep mends the rest", session_id
        )
    if stopping is not None:
        _carry_out(session_id, stopping)


def stop_execution(turn_id: UUID) -> turns.Stopping | None:
    """Staff stop a turn with its owner's rights, whose session may be in the trash; None when it is over (D9)."""
    turn = Turn.objects.filter(pk=turn_id).select_related("session").first()
    if turn is None or (stopping := turns.request_stop(turn.session_id, turn_id)) is None:
        return None
    if turn.session.goal_state == turn.session.Goal.ACTIVE:
        pause_goal(turn.session.owner_id, turn.session_id, "The turn was stopped.")
    _carry_out(turn.session_id, stopping)
    return stopping


def remove_session(user_id: int, session_id: UUID) -> None:
    """Out of every list first, so that nothing begins any more; then what runs in it is stopped."""
    for gone in sessions.delete(user_id, session_id):
        halt(gone)


def _carry_out(session_id: UUID, stopping: turns.Stopping) -> None:
    """The mark for the worker that runs it, or the ending itself; then the same for what it started."""
    if stopping.status == Turn.Status.RUNNING or not cancel_unstarted(session_id, stopping):
        try:
            stops.raise_mark(str(session_id), str(stopping.turn_id))
        except RedisDown:
            log.warning("the stop of turn %s could not be broadcast; the sweep will end it", stopping.turn_id)
    stop_children(stopping.turn_id)


def stop_children(turn_id: UUID) -> None:
    """What a stopped turn started is stopped with it; what earlier turns started goes on (A21.6).

    Nothing joins them meanwhile: a prompt is accepted only while its parent is not stopped.
    """
    for session_id, message_id in history.pending_for(turn_id):
        drop_queue(session_id, None, message_id, by="parent")
    started = Turn.objects.filter(parent=turn_id, status__in=Turn.UNFINISHED)
    for session_id, child_id in started.values_list("session_id", "pk"):
        if (stopping := turns.request_stop(session_id, child_id, by="parent")) is not None:
            _carry_out(session_id, stopping)


def pause_goal(user_id: int, session_id: UUID, why: str) -> None:
    """At once, for between two turns of a goal there is nothing else that a stop could reach (A30.4)."""
    try:
        sessions.pause_goal(user_id, session_id, why)
    except Conflict:
        return  # it was achieved or changed just now


def _between_turns(session_id: UUID) -> turns.Stopping | None:
    """One turn has ended and the next is being opened for what is queued: the stop covers that too (T7.3)."""
    deadline = time.monotonic() + BETWEEN_SECONDS
    try:
        while lease.is_held(str(session_id)) and time.monotonic() < deadline:
            through = history.last_accepted(session_id)
            if through is not None:
                stops.cover(str(session_id), through)
            if (stopping := turns.request_stop(session_id)) is not None:
                return stopping  # it was opened meanwhile, perhaps with the last message that waited
            if through is None:
                return None
            time.sleep(0.005)
    except RedisDown:
        log.warning("whether a turn follows cannot be seen: Redis is away")
    return None


def cancel_unstarted(session_id: UUID, stopping: turns.Stopping) -> bool:
    """End a turn that no worker runs, in the request itself; False when a worker was quicker."""
    waits = stopping.status == Turn.Status.WAITING
    try:
        with transaction.atomic():  # with its requests: nobody decides about a turn that is over (A11.9)
            ended = turns.end(
                stopping.turn_id,
                stopping.fence,
                turns.CANCELLED,
                reason="user",
                unless_running=True,
                override=waits,
            )
            requests = approvals.close(stopping.turn_id, "cancelled") if waits else []
    except TurnConflict:
        return False
    if waits:
        _outrun(session_id, stopping)
    else:
        announce_unannounced(session_id, stopping.turn_id)
    announce_cancelled(session_id, stopping.turn_id, ended, requests)
    after_turn(session_id, stopping.token, ended.stop_through)
    return True


def _outrun(session_id: UUID, stopping: turns.Stopping) -> None:
    """The worker that paused may still be telling of it: nothing of that comes after the ending."""
    try:
        lease.take_over(
            str(session_id),
            turn_id=str(stopping.turn_id),
            token=str(stopping.token),
            fence=stopping.fence + 1,
        )
    except RedisDown:
        log.warning("the fence of session %s could not be raised in Redis", session_id)


def drop_queue(
    session_id: UUID, through: int | None, message_id: UUID | None = None, *, by: CancelReason = "user"
) -> int:
    """Let queued messages go, and say how many; each run_id among them gets its cancelled ending (T3.6, T7.4)."""
    dropped = history.drop_pending(session_id, through=through, message_id=message_id)
    if not dropped:
        return 0
    lease.forget(str(session_id), [member_of(one) for one in dropped])
    happened: list[tuple[Event, str | None]] = [(queries.queue_now(session_id), None)]
    for one in dropped:
        if one.run_id:
            message = Message.objects.get(pk=one.id)
            ended = turns.record_dropped(
                session_id,
                one.run_id,
                message.origin,
                Permissions.from_json(message.permissions),
                one.accept_number,
                by=by,
            )
            happened.append((TurnCancelled(run_ids=[one.run_id], reason=by), str(ended)))
    publish(session_id, owner_of(session_id), happened)
    return len(dropped)
