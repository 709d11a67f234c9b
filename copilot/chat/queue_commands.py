"""Let people edit, remove, move and send their queued messages."""

from __future__ import annotations

from uuid import UUID

from config.core.errors import Conflict, InvalidRequest, NotFound
from copilot.chat import queue, selectors, turn_transitions
from copilot.chat.admission_limits import check_usage_limit
from copilot.chat.announcements import publish_queue_change
from copilot.chat.commands import validate_text
from copilot.chat.next_turn import queue_member_of, start_stranded_messages
from copilot.chat.permissions import UNRESTRICTED, Permissions
from copilot.chat.stop import StopResult, cancel_turn_without_worker, drop_queued_messages, stop_child_turns
from copilot.models import Message, Turn
from copilot.realtime import lease, worker_signals
from copilot.realtime.lease import QueueMember


def edit_queued_message(
    user_id: int, session_id: UUID, message_id: UUID, text: str, *, permissions: Permissions = UNRESTRICTED
) -> None:
    """Change the text of a queued message; from then on it may do no more than its editor may."""
    selectors.get_session(user_id, session_id)
    text = validate_text(text)
    if not text.strip():
        raise InvalidRequest("The message is empty.", code="empty_message")
    if not queue.edit_pending_message(session_id, message_id, text, permissions):
        raise _build_not_queued_error(session_id, message_id)
    publish_queue_change(session_id)


def remove_queued_message(user_id: int, session_id: UUID, message_id: UUID) -> None:
    selectors.get_session(user_id, session_id)
    if not Message.objects.filter(pk=message_id, session=session_id).exists():
        raise NotFound
    if not drop_queued_messages(session_id, None, message_id):
        raise Conflict("This message is no longer queued.", code="not_queued")


def move_queued_message(user_id: int, session_id: UUID, message_id: UUID, position: int) -> None:
    selectors.get_session(user_id, session_id)
    pending = queue.list_pending_messages(session_id)
    moved = next((message for message in pending if message.id == message_id), None)
    if moved is None:
        raise _build_not_queued_error(session_id, message_id)
    reordered = [message for message in pending if message.id != message_id]
    reordered.insert(max(0, position - 1), moved)
    places = sorted(message.queue_order for message in pending)
    orders = dict(zip((message.id for message in reordered), places, strict=True))
    queue.reorder_pending_messages(orders)
    lease.reorder_members(
        str(session_id), {queue_member_of(message): orders[message.id] for message in reordered}
    )
    publish_queue_change(session_id)


def send_queued_message_now(user_id: int, session_id: UUID, message_id: UUID) -> StopResult:
    selectors.get_session(user_id, session_id)
    check_usage_limit(user_id)
    pending = queue.list_pending_messages(session_id)
    chosen = next((message for message in pending if message.id == message_id), None)
    if chosen is None:
        raise _build_not_queued_error(session_id, message_id)
    stopping = turn_transitions.request_stop(session_id)
    if stopping is not None:
        stop_child_turns(stopping.turn_id)
    first_place = min(message.queue_order for message in pending) - 1.0
    number = queue.send_pending_message_alone(message_id, first_place)
    if number is None:
        raise _build_not_queued_error(session_id, message_id)
    renumbered = QueueMember(number, chosen.run_id is not None, str(message_id))
    lease.remove_members(str(session_id), [queue_member_of(chosen)])
    lease.reorder_members(str(session_id), {renumbered: first_place})
    publish_queue_change(session_id)
    if stopping is None:
        start_stranded_messages(session_id)
        return StopResult(turn_id=None, state="idle")
    if stopping.status == Turn.Status.RUNNING or not cancel_turn_without_worker(session_id, stopping):
        worker_signals.signal_stop(str(session_id), str(stopping.turn_id))
    return StopResult(turn_id=stopping.turn_id, state="stopping")


def _build_not_queued_error(session_id: UUID, message_id: UUID) -> Conflict | NotFound:
    if Message.objects.filter(pk=message_id, session=session_id).exists():
        return Conflict("This message is no longer queued.", code="not_queued")
    return NotFound()
