"""A turn is stopped, changes hands, or waits for a person and goes on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from copilot import ports
from copilot.errors import Conflict, FenceLost, TurnConflict
from copilot.events import CancelReason
from copilot.models import Turn
from copilot.turns.running import NEXT_IN_LINE, QUEUED, WAITING

MAX_HANDOVERS = 5  # planned shutdowns that do not count as losses (A3.9)


# --- stopping ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Stopping:
    turn_id: UUID
    status: str
    fence: int
    token: UUID
    through: int
    first: bool = True  # nobody had asked before


def request_stop(
    session_id: UUID, turn_id: UUID | None = None, *, by: CancelReason = "user"
) -> Stopping | None:
    """Mark the unfinished turn as stopped, durably; None when the session is idle (T7.3)."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_turn SET stop_requested_at = COALESCE(stop_requested_at, now()),
                   cancel_reason = CASE WHEN stop_requested_at IS NULL THEN %s ELSE cancel_reason END,
                   stop_through = (SELECT MAX(accept_number) FROM copilot_message WHERE session_id = %s)
            WHERE session_id = %s AND status IN ('queued', 'running', 'waiting') AND (%s::uuid IS NULL OR id = %s)
            RETURNING id, status, fence, token, stop_through, stop_requested_at = now()
            """,
            [by, session_id, session_id, turn_id, turn_id],
        )
        row = cursor.fetchone()
    if row is None:
        return None
    return Stopping(turn_id=row[0], status=row[1], fence=row[2], token=row[3], through=row[4], first=row[5])


def hold_running(turn_id: UUID, fence: int) -> None:
    """Until the transaction ends this turn stays this worker's and unstopped; raises when it is not (A21.6)."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT stop_requested_at IS NOT NULL FROM copilot_turn
            WHERE id = %s AND fence = %s AND status = 'running' FOR SHARE
            """,
            [turn_id, fence],
        )
        row = cursor.fetchone()
    if row is None:
        raise FenceLost(f"turn {turn_id} is not held under fence {fence}")
    if row[0]:
        raise Conflict("The turn was stopped.", code="turn_stopped")


# --- changing hands ----------------------------------------------------------------------------------

_REQUEUE = """
WITH fenced AS (
    UPDATE copilot_session s SET fence = s.fence + 1 FROM copilot_turn t
    WHERE t.id = %(turn)s AND t.fence = %(fence)s AND t.status = 'running' AND s.id = t.session_id
    RETURNING s.fence, t.attempts >= %(most)s AND %(lost)s = 1 AS used_up
)
UPDATE copilot_turn t
SET status = 'queued', throttle = '', fence = fenced.fence, queued_at = now(), worker = '', dispatched_at = now(),
    dispatch_count = dispatch_count + 1, attempts = LEAST(attempts + %(lost)s, %(most)s), handovers = handovers + %(planned)s,
    recovered_at = CASE WHEN %(lost)s = 1 THEN now() ELSE recovered_at END
FROM fenced WHERE t.id = %(turn)s AND t.fence = %(fence)s AND t.status = 'running'
RETURNING t.fence, t.attempts, fenced.used_up
"""


@dataclass(frozen=True)
class Requeued:
    fence: int
    attempts: int
    used_up: bool  # it was lost once more than it may be


def requeue(turn_id: UUID, fence: int, *, lost: bool) -> Requeued | None:
    """Give a running turn to another worker under a higher fence; None when somebody else acted first."""
    with connection.cursor() as cursor:
        cursor.execute(
            _REQUEUE,
            {
                "turn": turn_id,
                "fence": fence,
                "lost": 1 if lost else 0,
                "planned": 0 if lost else 1,
                "most": settings.TURN_MAX_ATTEMPTS,
            },
        )
        row = cursor.fetchone()
    return Requeued(*row) if row else None


def note_sent_again(turn_id: UUID) -> bool:
    """A queued turn's task is sent once more (T9.2)."""
    return bool(
        Turn.objects.filter(pk=turn_id, status=QUEUED).update(
            dispatched_at=Now(), dispatch_count=F("dispatch_count") + 1
        )
    )


def send_anew(turn_id: UUID, guard: Q) -> bool:
    """A queued turn waits from now on, for a task that is sent once more, if it is what `guard` says (D9)."""
    waiting = Turn.objects.filter(guard, pk=turn_id, status=QUEUED)
    return bool(waiting.update(queued_at=Now(), dispatched_at=Now(), dispatch_count=F("dispatch_count") + 1))


# --- waiting for a person ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Paused:
    """A turn that waits, held against everybody else until the transaction ends."""

    turn_id: UUID
    session_id: UUID
    fence: int
    token: UUID
    stopping: bool


_PAUSE = f"""
UPDATE copilot_turn t SET status = 'waiting', paused_at = now()
WHERE id = %s AND fence = %s AND status = 'running' AND stop_requested_at IS NULL
RETURNING {NEXT_IN_LINE.format(turn="t")}
"""  # noqa: S608 - the texts are ours


def pause(turn_id: UUID, fence: int) -> None:
    """No worker waits for a person; a stop that came before goes first."""
    with connection.cursor() as cursor:
        cursor.execute(_PAUSE, [turn_id, fence])
        row = cursor.fetchone()
    if row is None:
        raise TurnConflict(f"turn {turn_id} cannot wait under fence {fence}")
    for waiting in row[0]:
        transaction.on_commit(partial(ports.send_turn, waiting))


def hold_waiting(*, turn_id: UUID | None = None, session_id: UUID | None = None) -> Paused | None:
    """Lock the turn if it waits: whoever decides, abandons, stops or lets it expire does so first (A11.5)."""
    found = Turn.objects.select_for_update().filter(status=WAITING)
    found = found.filter(pk=turn_id) if turn_id is not None else found.filter(session=session_id)
    turn = found.only("session_id", "fence", "token", "stop_requested_at").first()
    if turn is None:
        return None
    return Paused(
        turn_id=turn.pk,
        session_id=turn.session_id,
        fence=turn.fence,
        token=turn.token,
        stopping=turn.stop_requested_at is not None,
    )


def waiting_on(session_id: UUID) -> UUID | None:
    """The session's turn that waits for a person, if one does at this moment."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM copilot_turn WHERE session_id = %s AND status = %s LIMIT 1", [session_id, WAITING]
        )
        row = cursor.fetchone()
    return row[0] if row else None


_RESUME = """
WITH fenced AS (
    UPDATE copilot_session s SET fence = s.fence + 1 FROM copilot_turn t
    WHERE t.id = %(turn)s AND t.fence = %(fence)s AND t.status = 'waiting' AND s.id = t.session_id
    RETURNING s.fence
)
UPDATE copilot_turn t
SET status = 'queued', throttle = '', fence = fenced.fence, queued_at = now(), worker = '', dispatched_at = now(),
    dispatch_count = dispatch_count + 1, paused_at = NULL,
    paused_seconds = paused_seconds + extract(epoch FROM now() - COALESCE(paused_at, now()))
FROM fenced WHERE t.id = %(turn)s AND t.fence = %(fence)s AND t.status = 'waiting'
RETURNING t.fence
"""


def resume(turn_id: UUID, fence: int) -> int:
    """Everything is decided: the turn waits for a worker, under a higher fence, which is the answer."""
    with connection.cursor() as cursor:
        cursor.execute(_RESUME, {"turn": turn_id, "fence": fence})
        row = cursor.fetchone()
    if row is None:
        raise TurnConflict(f"turn {turn_id} does not wait under fence {fence}")
    return int(row[0])
