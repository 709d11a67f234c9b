"""An idle session, held for an act on its conversation: nothing starts meanwhile, and what arrives waits (A30.5, A30.6)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from uuid import UUID, uuid4

from copilot import turns
from copilot.dispatch.following import after_turn, restore
from copilot.errors import Conflict, Unavailable
from copilot.live import lease
from copilot.live.client import RedisDown
from copilot.models import Turn

ENDING_SECONDS = 2.0  # a stopped turn ends within one; an ended one lets go within milliseconds
LOOK_SECONDS = 0.005


@dataclass(frozen=True, kw_only=True)
class Hold:
    session_id: UUID
    turn_id: UUID  # of the turn that may begin under it
    token: UUID
    keep_through: int  # chips that waited before the act wait after it

    def let_go(self) -> None:
        """What arrived meanwhile starts now."""
        after_turn(self.session_id, self.token, self.keep_through)


def hold(session_id: UUID) -> Hold:
    """Take the session as a turn would, or say that it is busy; of several acts at once one gets it."""
    if turns.waiting_on(session_id) is not None:
        raise busy()  # its lease is free for the turn that goes on (A11.3)
    deadline = time.monotonic() + ENDING_SECONDS
    try:
        while (held := _claimed(session_id)) is None:
            if time.monotonic() > deadline:
                raise busy()
            time.sleep(LOOK_SECONDS)
    except RedisDown as problem:
        raise Unavailable from problem
    unfinished = Turn.objects.filter(session=session_id, status__in=Turn.UNFINISHED).first()
    if unfinished is not None:
        lease.give_back(str(session_id), str(held.token))
        if unfinished.status != Turn.Status.WAITING:
            restore(session_id)  # Redis had forgotten it
        raise busy()
    return held


def busy() -> Conflict:
    return Conflict("The session is busy. Stop it, or try again when it has finished.", code="session_busy")


def _claimed(session_id: UUID) -> Hold | None:
    """None while the turn that has the session is about to let it go."""
    chips = lease.members(str(session_id))
    held = Hold(
        session_id=session_id,
        turn_id=uuid4(),
        token=uuid4(),
        keep_through=max((chip.accept_number for chip in chips), default=0),
    )
    verdict = lease.claim_or_queue(
        str(session_id), turn_id=str(held.turn_id), token=str(held.token), member=None, order=0.0
    )
    if isinstance(verdict, lease.Claimed):
        return held
    holder = Turn.objects.filter(pk=verdict.turn_id).first()
    if holder is None or (holder.ended_at is None and holder.stop_requested_at is None):
        raise busy()
    return None
