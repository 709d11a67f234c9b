"""After a turn: let the session go, or start what must follow; and put back what Redis forgot."""

from __future__ import annotations

from uuid import UUID, uuid4

from django.db import IntegrityError

from copilot.chat import queue, serializers, turn_selectors, turns
from copilot.chat.admission_limits import can_start_queued, release_hold
from copilot.chat.announcements import announce_queued_turn
from copilot.chat.permissions import Permissions
from copilot.models import Message, Session, Turn
from copilot.realtime import lease, stop_signal
from copilot.realtime.lease import QueueMember


def release_or_start_next(
    session_id: UUID, token: UUID, keep_through: int | None, *, again: bool = False
) -> None:
    """The last act of a turn: let the session go, or start what must follow at once (T4.4, T6.3, T7.4)."""
    while True:
        next_turn, next_token = uuid4(), uuid4()
        parting = lease.release_or_keep(
            lease.SessionRelease(
                session_id=str(session_id),
                token=str(token),
                keep_through=keep_through,
                next_turn_id=str(next_turn),
                next_token=str(next_token),
            )
        )
        if parting.verdict != "kept" or _start_head_of_queue(
            session_id, next_turn, next_token, keep_through, again=again
        ):
            return
        token = next_token


def start_kept_turn(session_id: UUID, turn_id: UUID, token: UUID, keep_through: int | None) -> None:
    """The session was kept for this turn: start it, or let the session go after all."""
    if not _start_head_of_queue(session_id, turn_id, token, keep_through):
        release_or_start_next(session_id, token, keep_through)


def _start_head_of_queue(
    session_id: UUID, turn_id: UUID, token: UUID, keep_through: int | None, *, again: bool = False
) -> bool:
    """Open a turn for the head of the queue; False when the queue turned out to hold nothing to start."""
    pending = queue.list_pending_messages(session_id)
    covered = stop_signal.get_covered_number(str(session_id))
    if covered is not None:
        keep_through = covered if keep_through is None else max(keep_through, covered)
    head = next(
        (one for one in pending if one.run_id or keep_through is None or one.accept_number > keep_through),
        None,
    )
    if head is None:
        restore_queue_in_redis(session_id)
        return False
    owner_id, is_active = _get_owner_and_activity(session_id)
    if not is_active or not can_start_queued(session_id, owner_id, turn_id, len(pending), again=again):
        lease.release_lease(str(session_id), str(token))
        return True
    message = Message.objects.get(pk=head.id)
    opening = turns.NewTurn(
        turn_id=turn_id,
        token=token,
        session_id=session_id,
        message_id=head.id,
        origin=message.origin,
        run_id=head.run_id,
        tier=message.tier,
        mode=message.mode,
        permissions=Permissions.from_json(head.permissions),
        accept_number=head.accept_number,
        parent=UUID(message.data["parent_turn"]) if "parent_turn" in message.data else None,
        budget=message.data.get("budget", 0),
    )
    try:
        opened = turns.open_turn(opening)
    except IntegrityError:
        release_hold(owner_id, turn_id)
        lease.release_lease(str(session_id), str(token))
        return True  # another turn is unfinished here: what is queued waits behind it
    if opened is None:
        release_hold(owner_id, turn_id)
        restore_queue_in_redis(session_id)
        return False
    lease.remove_members(str(session_id), [queue_member_of(head)])
    announce_queued_turn(
        opening, opened, owner_id, serializers.serialize_message(message), queue_changed=True
    )
    return True


def _get_owner_and_activity(session_id: UUID) -> tuple[int, bool]:
    """Who owns the session, and whether the account is active: it may have been suspended since (A3.10)."""
    return Session.objects.values_list("owner_id", "owner__is_active").get(pk=session_id)


def queue_member_of(one: queue.PendingMessage) -> QueueMember:
    return QueueMember(one.accept_number, one.run_id is not None, str(one.id))


def start_stranded_messages(session_id: UUID) -> bool:
    """Start a turn for messages that wait although nothing runs (D10)."""
    turn_id, token = uuid4(), uuid4()
    verdict = lease.claim_or_queue(
        str(session_id), turn_id=str(turn_id), token=str(token), member=None, order=0.0
    )
    if not isinstance(verdict, lease.SessionClaimed):
        return False
    restore_queue_in_redis(session_id)
    release_or_start_next(session_id, token, None, again=True)
    return True


def start_after_limit_lifted(user_id: int) -> None:
    """Billing's hook: what a limit kept waiting goes out now (B7.3)."""
    for session_id in turn_selectors.list_stranded_sessions(owner_id=user_id):
        start_stranded_messages(session_id)


def restore_session_in_redis(session_id: UUID) -> None:
    """Put back what Redis lost: the lease of the unfinished turn and the working order of the queue (T2.5).

    A turn that waits for a person holds no lease (A11.3).
    """
    turn = Turn.objects.filter(session=session_id, status__in=(turns.QUEUED, turns.RUNNING)).first()
    if turn is not None:
        lease.claim_or_queue(
            str(session_id), turn_id=str(turn.pk), token=str(turn.token), member=None, order=0.0
        )
        if not Turn.objects.filter(pk=turn.pk, status__in=(turns.QUEUED, turns.RUNNING)).exists():
            lease.release_lease(str(session_id), str(turn.token))  # it ended meanwhile, and let go of nothing
    restore_queue_in_redis(session_id)


def restore_queue_in_redis(session_id: UUID) -> None:
    """The members are read before the rows: a message gets its row first, so none that just came looks stale."""
    members = lease.list_members(str(session_id))
    orders = {queue_member_of(one): one.queue_order for one in queue.list_pending_messages(session_id)}
    lease.repair_queue(str(session_id), orders, [member for member in members if member not in orders])
