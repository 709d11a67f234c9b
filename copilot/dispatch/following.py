"""After a turn: let the session go, or start what must follow; and put back what Redis forgot."""

from __future__ import annotations

from uuid import UUID, uuid4

from django.db import IntegrityError

from copilot import executions, history, queries, turns
from copilot.dispatch.limits import let_go, may_go_on
from copilot.dispatch.telling import announce
from copilot.live import lease, stop
from copilot.live.lease import Member
from copilot.models import Message, Session, Turn
from copilot.permissions import Permissions


def after_turn(session_id: UUID, token: UUID, keep_through: int | None, *, again: bool = False) -> None:
    """The last act of a turn: let the session go, or start what must follow at once (T4.4, T6.3, T7.4)."""
    while True:
        next_turn, next_token = uuid4(), uuid4()
        parting = lease.take_or_release(
            lease.Release(
                session_id=str(session_id),
                token=str(token),
                keep_through=keep_through,
                next_turn_id=str(next_turn),
                next_token=str(next_token),
            )
        )
        if parting.verdict != "kept" or _start_next(
            session_id, next_turn, next_token, keep_through, again=again
        ):
            return
        token = next_token


def follow(session_id: UUID, turn_id: UUID, token: UUID, keep_through: int | None) -> None:
    """The session was kept for this turn: start it, or let the session go after all."""
    if not _start_next(session_id, turn_id, token, keep_through):
        after_turn(session_id, token, keep_through)


def _start_next(
    session_id: UUID, turn_id: UUID, token: UUID, keep_through: int | None, *, again: bool = False
) -> bool:
    """Open a turn for the head of the queue; False when the queue turned out to hold nothing to start."""
    pending = history.pending(session_id)
    covered = stop.covered(str(session_id))
    if covered is not None:
        keep_through = covered if keep_through is None else max(keep_through, covered)
    head = next(
        (one for one in pending if one.run_id or keep_through is None or one.accept_number > keep_through),
        None,
    )
    if head is None:
        restore_queue(session_id)
        return False
    owner_id, is_active = _account_of(session_id)
    if not is_active or not may_go_on(session_id, owner_id, turn_id, len(pending), again=again):
        lease.give_back(str(session_id), str(token))
        return True
    message = Message.objects.get(pk=head.id)
    opening = turns.Opening(
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
        let_go(owner_id, turn_id)
        lease.give_back(str(session_id), str(token))
        return True  # another turn is unfinished here: what is queued waits behind it
    if opened is None:
        let_go(owner_id, turn_id)
        restore_queue(session_id)
        return False
    lease.forget(str(session_id), [member_of(head)])
    announce(opening, opened, owner_id, queries.message_view(message), queue_changed=True)
    return True


def _account_of(session_id: UUID) -> tuple[int, bool]:
    """Who owns the session, and whether the account is active: it may have been suspended since (A3.10)."""
    return Session.objects.values_list("owner_id", "owner__is_active").get(pk=session_id)


def member_of(one: history.Pending) -> Member:
    return Member(one.accept_number, one.run_id is not None, str(one.id))


def start_stranded(session_id: UUID) -> bool:
    """Start a turn for messages that wait although nothing runs (D10)."""
    turn_id, token = uuid4(), uuid4()
    verdict = lease.claim_or_queue(
        str(session_id), turn_id=str(turn_id), token=str(token), member=None, order=0.0
    )
    if not isinstance(verdict, lease.Claimed):
        return False
    restore_queue(session_id)
    after_turn(session_id, token, None, again=True)
    return True


def limit_lifted(user_id: int) -> None:
    """Billing's hook: what a limit kept waiting goes out now (B7.3)."""
    for session_id in executions.stranded_sessions(owner_id=user_id):
        start_stranded(session_id)


def restore(session_id: UUID) -> None:
    """Put back what Redis lost: the lease of the unfinished turn and the working order of the queue (T2.5).

    A turn that waits for a person holds no lease (A11.3).
    """
    turn = Turn.objects.filter(session=session_id, status__in=(turns.QUEUED, turns.RUNNING)).first()
    if turn is not None:
        lease.claim_or_queue(
            str(session_id), turn_id=str(turn.pk), token=str(turn.token), member=None, order=0.0
        )
        if not Turn.objects.filter(pk=turn.pk, status__in=(turns.QUEUED, turns.RUNNING)).exists():
            lease.give_back(str(session_id), str(turn.token))  # it ended meanwhile, and let go of nothing
    restore_queue(session_id)


def restore_queue(session_id: UUID) -> None:
    """The members are read before the rows: a message gets its row first, so none that just came looks stale."""
    members = lease.members(str(session_id))
    orders = {member_of(one): one.queue_order for one in history.pending(session_id)}
    lease.mend_queue(str(session_id), orders, [member for member in members if member not in orders])
