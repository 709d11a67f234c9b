"""Lock an idle session while its messages are changed, so that no turn starts and new messages wait."""

from __future__ import annotations

import time
from dataclasses import dataclass
from uuid import UUID, uuid4

from config.core.errors import Conflict, ServiceUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.chat import turn_transitions
from copilot.chat.next_turn import release_or_start_next, restore_session_in_redis
from copilot.models import Turn
from copilot.realtime import lease

LOCK_TIMEOUT_SECONDS = 2.0  # a stopped turn ends within a second; an ended one releases within milliseconds
LOCK_POLL_SECONDS = 0.005


@dataclass(frozen=True, kw_only=True)
class SessionLock:
    session_id: UUID
    turn_id: UUID  # of the turn that may start under it
    token: UUID
    keep_through: int  # messages queued before the lock stay queued after it

    def release(self) -> None:
        release_or_start_next(self.session_id, self.token, self.keep_through)


def lock_idle_session(session_id: UUID) -> SessionLock:
    """Lock the session as a turn would, or raise Conflict when it is busy; one of several callers gets it."""
    if turn_transitions.get_paused_turn_id(session_id) is not None:
        raise build_session_busy_error()  # its lease is free, but the paused turn may resume any moment
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    try:
        while (lock := _try_claim_session(session_id)) is None:
            if time.monotonic() > deadline:
                raise build_session_busy_error()
            time.sleep(LOCK_POLL_SECONDS)
    except REDIS_OUTAGE_ERRORS as problem:
        raise ServiceUnavailable from problem
    unfinished = Turn.objects.unfinished().filter(session=session_id).first()
    if unfinished is not None:
        lease.release_lease(str(session_id), str(lock.token))
        if unfinished.status != Turn.Status.WAITING:
            restore_session_in_redis(session_id)  # Redis had lost its lease
        raise build_session_busy_error()
    return lock


def build_session_busy_error() -> Conflict:
    return Conflict("The session is busy. Stop it, or try again when it has finished.", code="session_busy")


def _try_claim_session(session_id: UUID) -> SessionLock | None:
    """Claim the session; None while the turn that holds it is about to release it."""
    members = lease.list_members(str(session_id))
    lock = SessionLock(
        session_id=session_id,
        turn_id=uuid4(),
        token=uuid4(),
        keep_through=max((member.accept_number for member in members), default=0),
    )
    verdict = lease.claim_or_queue(
        str(session_id), turn_id=str(lock.turn_id), token=str(lock.token), member=None, order=0.0
    )
    if isinstance(verdict, lease.SessionClaimed):
        return lock
    holder = Turn.objects.filter(pk=verdict.turn_id).first()
    if holder is None or (holder.ended_at is None and holder.stop_requested_at is None):
        raise build_session_busy_error()
    return None
