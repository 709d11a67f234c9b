"""The queue, by hand: edit, remove, move, send now (T6.5)."""

from __future__ import annotations

from uuid import UUID

from copilot import history, queries, turns
from copilot.commands import checked_text
from copilot.dispatch.answers import Stopped
from copilot.dispatch.following import member_of, start_stranded
from copilot.dispatch.limits import check_limit
from copilot.dispatch.stopping import cancel_unstarted, drop_queue, stop_children
from copilot.dispatch.telling import publish_queue
from copilot.errors import Conflict, InvalidRequest, NotFound
from copilot.live import lease
from copilot.live import stop as stops
from copilot.live.lease import Member
from copilot.models import Message, Turn
from copilot.permissions import UNRESTRICTED, Permissions


def edit_queued(
    user_id: int, session_id: UUID, message_id: UUID, text: str, *, permissions: Permissions = UNRESTRICTED
) -> None:
    """Change what a waiting message says; from then on it may do no more than whoever changed it."""
    queries.session_of(user_id, session_id)
    text = checked_text(text)
    if not text.strip():
        raise InvalidRequest("The message is empty.", code="empty_message")
    if not history.edit_pending(session_id, message_id, text, permissions):
        raise _not_queued(session_id, message_id)
    publish_queue(session_id)


def remove_queued(user_id: int, session_id: UUID, message_id: UUID) -> None:
    queries.session_of(user_id, session_id)
    if not Message.objects.filter(pk=message_id, session=session_id).exists():
        raise NotFound
    if not drop_queue(session_id, None, message_id):
        raise Conflict("This message is no longer queued.", code="not_queued")


def move_queued(user_id: int, session_id: UUID, message_id: UUID, position: int) -> None:
    """Put a queued message at a place of the queue, counted from 1."""
    queries.session_of(user_id, session_id)
    pending = history.pending(session_id)
    moved = next((one for one in pending if one.id == message_id), None)
    if moved is None:
        raise _not_queued(session_id, message_id)
    others = [one for one in pending if one.id != message_id]
    others.insert(max(0, position - 1), moved)
    orders = dict(zip((one.id for one in others), sorted(one.queue_order for one in pending), strict=True))
    history.order_pending(orders)
    lease.reorder(str(session_id), {member_of(one): orders[one.id] for one in others})
    publish_queue(session_id)


def send_now(user_id: int, session_id: UUID, message_id: UUID) -> Stopped:
    """Interrupt: stop what runs, keep its partial answer, and go on with this message at once (T6.5)."""
    queries.session_of(user_id, session_id)
    check_limit(user_id)
    pending = history.pending(session_id)
    chosen = next((one for one in pending if one.id == message_id), None)
    if chosen is None:
        raise _not_queued(session_id, message_id)
    stopping = turns.request_stop(session_id)
    if stopping is not None:
        stop_children(stopping.turn_id)
    first = min(one.queue_order for one in pending) - 1.0
    number = history.accept_again(message_id, first)
    if number is None:
        raise _not_queued(session_id, message_id)
    again = Member(number, chosen.run_id is not None, str(message_id))
    lease.forget(str(session_id), [member_of(chosen)])
    lease.reorder(str(session_id), {again: first})
    publish_queue(session_id)
    if stopping is None:
        start_stranded(session_id)
        return Stopped(turn_id=None, state="idle")
    if stopping.status == Turn.Status.RUNNING or not cancel_unstarted(session_id, stopping):
        stops.raise_mark(str(session_id), str(stopping.turn_id))
    return Stopped(turn_id=stopping.turn_id, state="stopping")


def _not_queued(session_id: UUID, message_id: UUID) -> Conflict | NotFound:
    if Message.objects.filter(pk=message_id, session=session_id).exists():
        return Conflict("This message is no longer queued.", code="not_queued")
    return NotFound()
