"""Release a session after a turn or start its next one, and restore what Redis has lost of it."""

from __future__ import annotations

from uuid import UUID, uuid4

from django.db import IntegrityError

from copilot.chat import queue, serializers, turn_selectors, turns
from copilot.chat.admission_limits import can_start_queued, release_hold
from copilot.chat.announcements import announce_queued_turn
from copilot.chat.permissions import Permissions
from copilot.models import Message, Session, Turn
from copilot.realtime import lease, worker_signals
from copilot.realtime.lease import QueueMember


def release_or_start_next(
    session_id: UUID, token: UUID, keep_through: int | None, *, is_retry: bool = False
) -> None:
    """Release the session, or open the next turn for what is queued.

    Messages up to `keep_through` were covered by a stop: they stay queued, except those with a run_id.
    """
    while True:
        next_turn, next_token = uuid4(), uuid4()
        release = lease.release_or_keep(
            lease.SessionRelease(
                session_id=str(session_id),
                token=str(token),
                keep_through=keep_through,
                next_turn_id=str(next_turn),
                next_token=str(next_token),
            )
        )
        if release.verdict != "kept" or _start_head_of_queue(
            session_id, next_turn, next_token, keep_through, is_retry=is_retry
        ):
            return
        token = next_token


def start_kept_turn(session_id: UUID, turn_id: UUID, token: UUID, keep_through: int | None) -> None:
    if not _start_head_of_queue(session_id, turn_id, token, keep_through):
        release_or_start_next(session_id, token, keep_through)


def _start_head_of_queue(
    session_id: UUID, turn_id: UUID, token: UUID, keep_through: int | None, *, is_retry: bool = False
) -> bool:
    pending = queue.list_pending_messages(session_id)
    covered = worker_signals.get_covered_number(str(session_id))
    if covered is not None:
        keep_through = covered if keep_through is None else max(keep_through, covered)
    head = next(
        (
            message
            for message in pending
            if message.run_id or keep_through is None or message.accept_number > keep_through
        ),
        None,
    )
    if head is None:
        restore_queue_in_redis(session_id)
        return False
    owner_id, is_active = _get_owner_and_activity(session_id)
    if not is_active or not can_start_queued(session_id, owner_id, turn_id, len(pending), is_retry=is_retry):
        lease.release_lease(str(session_id), str(token))
        return True
    message = Message.objects.get(pk=head.id)
    new_turn = turns.NewTurn(
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
        opened = turns.open_turn(new_turn)
    except IntegrityError:
        release_hold(owner_id, turn_id)
        lease.release_lease(str(session_id), str(token))
        return True  # another turn is unfinished: the queue waits behind it
    if opened is None:
        release_hold(owner_id, turn_id)
        restore_queue_in_redis(session_id)
        return False
    lease.remove_members(str(session_id), [queue_member_of(head)])
    announce_queued_turn(
        new_turn, opened, owner_id, serializers.serialize_message(message), queue_changed=True
    )
    return True


def _get_owner_and_activity(session_id: UUID) -> tuple[int, bool]:
    """Return the owner and whether the account is active: it may have been suspended since the submission."""
    return Session.objects.values_list("owner_id", "owner__is_active").get(pk=session_id)


def queue_member_of(message: queue.PendingMessage | queue.DroppedMessage) -> QueueMember:
    return QueueMember(message.accept_number, message.run_id is not None, str(message.id))


def start_stranded_messages(session_id: UUID) -> bool:
    turn_id, token = uuid4(), uuid4()
    verdict = lease.claim_or_queue(
        str(session_id), turn_id=str(turn_id), token=str(token), member=None, order=0.0
    )
    if not isinstance(verdict, lease.SessionClaimed):
        return False
    restore_queue_in_redis(session_id)
    release_or_start_next(session_id, token, None, is_retry=True)
    return True


def start_after_limit_lifted(user_id: int, **_signal: object) -> None:
    """Receive `billing.signals.limit_lifted`: start what a limit kept queued."""
    for session_id in turn_selectors.list_stranded_sessions(owner_id=user_id):
        start_stranded_messages(session_id)


def restore_session_in_redis(session_id: UUID) -> None:
    """Restore the lease of the unfinished turn and the order of the queue in Redis.

    A turn that waits for a person holds no lease.
    """
    turn = Turn.objects.filter(session=session_id, status__in=(turns.QUEUED, turns.RUNNING)).first()
    if turn is not None:
        lease.claim_or_queue(
            str(session_id), turn_id=str(turn.pk), token=str(turn.token), member=None, order=0.0
        )
        if not Turn.objects.filter(pk=turn.pk, status__in=(turns.QUEUED, turns.RUNNING)).exists():
            # It ended in the meantime, when there was no lease to release yet.
            lease.release_lease(str(session_id), str(turn.token))
    restore_queue_in_redis(session_id)


def restore_queue_in_redis(session_id: UUID) -> None:
    # Read the members before the rows: a message gets its row first, so a new one never looks stale.
    members = lease.list_members(str(session_id))
    orders = {
        queue_member_of(message): message.queue_order for message in queue.list_pending_messages(session_id)
    }
    lease.repair_queue(str(session_id), orders, [member for member in members if member not in orders])
