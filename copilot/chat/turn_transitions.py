"""Move turns between states: stop, requeue, pause, resume and end them, each by one conditional update."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, get_args
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from config.core.db import fetch_one
from config.core.errors import Conflict, FenceLost, TurnConflict
from copilot import metrics, signals
from copilot.chat.notices import LimitCode
from copilot.chat.turn_context import CHANNELS_BY_ORIGIN
from copilot.chat.turns import (
    ALLOWED_TRANSITIONS,
    CANCELLED,
    FAILED,
    NEXT_THROTTLED_TURNS,
    RUNNING,
    WAITING,
    decode_jsonb,
)
from copilot.models import Turn
from copilot.realtime.events import CancelReason, Event, GoalJudged, SessionChanged, TurnSummary
from copilot.realtime.payloads import ContextUsage
from copilot.tasks import enqueue_follow_ups, wake_worker

MAX_HANDOVERS = 5  # planned shutdowns that do not count as lost attempts


# --- Stopping ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StopRequest:
    turn_id: UUID
    status: str
    fence: int
    token: UUID
    stop_through: int
    is_first: bool = True  # nobody had requested a stop before


def request_stop(
    session_id: UUID, turn_id: UUID | None = None, *, by: CancelReason = "user"
) -> StopRequest | None:
    return fetch_one(
        StopRequest,
        """
        UPDATE copilot_turn SET stop_requested_at = COALESCE(stop_requested_at, now()),
               cancel_reason = CASE WHEN stop_requested_at IS NULL THEN %s ELSE cancel_reason END,
               stop_through = (SELECT MAX(accept_number) FROM copilot_message WHERE session_id = %s)
        WHERE session_id = %s AND status IN ('queued', 'running', 'waiting') AND (%s::uuid IS NULL OR id = %s)
        RETURNING id AS turn_id, status, fence, token, stop_through, stop_requested_at = now() AS is_first
        """,
        [by, session_id, session_id, turn_id, turn_id],
    )


def lock_running_parent(turn_id: UUID, fence: int) -> None:
    """Keep the turn under this fence and unstopped until the transaction ends, or raise."""
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


# --- Handing over ------------------------------------------------------------------------------------

_REQUEUE_TURN = """
WITH fenced AS (
    UPDATE copilot_session s SET fence = s.fence + 1 FROM copilot_turn t
    WHERE t.id = %(turn)s AND t.fence = %(fence)s AND t.status = 'running' AND s.id = t.session_id
    RETURNING s.fence, t.attempts >= %(most)s AND %(lost)s = 1 AS used_up
)
UPDATE copilot_turn t
SET status = 'queued', throttled_by = '', fence = fenced.fence, queued_at = now(), worker = '', dispatched_at = now(),
    dispatch_count = dispatch_count + 1, attempts = LEAST(attempts + %(lost)s, %(most)s), handovers = handovers + %(planned)s,
    recovered_at = CASE WHEN %(lost)s = 1 THEN now() ELSE recovered_at END
FROM fenced WHERE t.id = %(turn)s AND t.fence = %(fence)s AND t.status = 'running'
RETURNING t.fence, t.attempts, fenced.used_up AS has_no_attempts_left
"""


@dataclass(frozen=True)
class RequeuedTurn:
    fence: int
    attempts: int
    has_no_attempts_left: bool  # it was lost once too often


def requeue_turn(turn_id: UUID, fence: int, *, lost: bool) -> RequeuedTurn | None:
    """Requeue a running turn for another worker under a higher fence; None when somebody else acted first."""
    return fetch_one(
        RequeuedTurn,
        _REQUEUE_TURN,
        {
            "turn": turn_id,
            "fence": fence,
            "lost": 1 if lost else 0,
            "planned": 0 if lost else 1,
            "most": settings.TURN_MAX_ATTEMPTS,
        },
    )


def mark_sent_again(turn_id: UUID) -> bool:
    return bool(
        Turn.objects.queued()
        .filter(pk=turn_id)
        .update(dispatched_at=Now(), dispatch_count=F("dispatch_count") + 1)
    )


def requeue_waiting_turn(turn_id: UUID, guard: Q) -> bool:
    rows = Turn.objects.queued().filter(guard, pk=turn_id)
    return bool(rows.update(queued_at=Now(), dispatched_at=Now(), dispatch_count=F("dispatch_count") + 1))


# --- Pausing and resuming ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PausedTurn:
    """A turn that waits for a person, locked until the transaction ends."""

    turn_id: UUID
    session_id: UUID
    fence: int
    token: UUID
    is_stopping: bool


_PAUSE_TURN = f"""
UPDATE copilot_turn t SET status = 'waiting', paused_at = now()
WHERE id = %s AND fence = %s AND status = 'running' AND stop_requested_at IS NULL
RETURNING {NEXT_THROTTLED_TURNS.format(turn="t")}
"""  # noqa: S608 - the texts are ours


def pause_turn(turn_id: UUID, fence: int) -> None:
    """Let the turn wait for a person without a worker. Raise TurnConflict when it was stopped first."""
    with connection.cursor() as cursor:
        cursor.execute(_PAUSE_TURN, [turn_id, fence])
        row = cursor.fetchone()
    if row is None:
        raise TurnConflict(f"turn {turn_id} cannot wait under fence {fence}")
    for throttled_turn_id in row[0]:
        transaction.on_commit(partial(wake_worker, throttled_turn_id))


def lock_paused_turn(*, turn_id: UUID | None = None, session_id: UUID | None = None) -> PausedTurn | None:
    """Lock the turn if it waits. Deciding, abandoning, stopping and expiring all take this lock first."""
    rows = Turn.objects.waiting().select_for_update()
    rows = rows.filter(pk=turn_id) if turn_id is not None else rows.filter(session=session_id)
    turn = rows.only("session_id", "fence", "token", "stop_requested_at").first()
    if turn is None:
        return None
    return PausedTurn(
        turn_id=turn.pk,
        session_id=turn.session_id,
        fence=turn.fence,
        token=turn.token,
        is_stopping=turn.stop_requested_at is not None,
    )


def get_paused_turn_id(session_id: UUID) -> UUID | None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM copilot_turn WHERE session_id = %s AND status = %s LIMIT 1", [session_id, WAITING]
        )
        row = cursor.fetchone()
    return row[0] if row else None


_RESUME_TURN = """
WITH fenced AS (
    UPDATE copilot_session s SET fence = s.fence + 1 FROM copilot_turn t
    WHERE t.id = %(turn)s AND t.fence = %(fence)s AND t.status = 'waiting' AND s.id = t.session_id
    RETURNING s.fence
)
UPDATE copilot_turn t
SET status = 'queued', throttled_by = '', fence = fenced.fence, queued_at = now(), worker = '', dispatched_at = now(),
    dispatch_count = dispatch_count + 1, paused_at = NULL,
    paused_seconds = paused_seconds + extract(epoch FROM now() - COALESCE(paused_at, now()))
FROM fenced WHERE t.id = %(turn)s AND t.fence = %(fence)s AND t.status = 'waiting'
RETURNING t.fence
"""


def resume_turn(turn_id: UUID, fence: int) -> int:
    """Queue a paused turn again once everything is decided; return its new, higher fence."""
    with connection.cursor() as cursor:
        cursor.execute(_RESUME_TURN, {"turn": turn_id, "fence": fence})
        row = cursor.fetchone()
    if row is None:
        raise TurnConflict(f"turn {turn_id} does not wait under fence {fence}")
    return int(row[0])


# --- Ending ------------------------------------------------------------------------------------------

LIMIT_CODES = frozenset(get_args(LimitCode))
METRIC_ORIGINS = frozenset({*CHANNELS_BY_ORIGIN, "telegram", "discord", "slack"})
_json = msgspec.json.Encoder()


@dataclass(frozen=True, kw_only=True)
class EndedTurn:
    run_ids: list[str]
    stop_through: int | None
    cancel_reason: CancelReason
    child: bool
    title: str
    pinned: bool
    archived: bool
    title_origin: str = ""
    goal_state: str = ""
    goal_paused: str = ""  # the reason, if this ending has paused the session's goal

    def build_session_events(self) -> list[Event]:
        paused: list[Event] = []
        if self.goal_paused:
            paused.append(GoalJudged(state="paused", reason=self.goal_paused))
        return [
            *paused,
            SessionChanged(
                title=self.title, pinned=self.pinned, archived=self.archived, state="idle", child=self.child
            ),
        ]


_END_TURN = f"""
WITH ended AS (
    UPDATE copilot_turn SET status = %(to)s, ended_at = now(), failure_code = %(failure)s, limit_code = %(limit)s,
           cancel_reason = CASE WHEN %(cancelled)s THEN COALESCE(NULLIF(cancel_reason, ''), %(reason)s)
                           ELSE '' END, summary = %(summary)s::jsonb, model = COALESCE(NULLIF(%(model)s, ''), model),
           fence = %(fence)s + %(raise)s
    WHERE id = %(turn)s AND fence = %(fence)s AND status = ANY(%(from)s)
      AND NOT (%(unless_pending)s AND stop_requested_at IS NULL AND EXISTS (
          SELECT 1 FROM copilot_message m WHERE m.session_id = copilot_turn.session_id
          AND m.sequence IS NULL AND m.dropped_at IS NULL))
    RETURNING session_id, run_ids, stop_through, cancel_reason, origin, payer_id, address_hash,
              extract(epoch FROM ended_at - created_at)::float8 AS seconds
)
UPDATE copilot_session s SET active_at = now(), fence = GREATEST(s.fence, %(fence)s + %(raise)s),
       context = COALESCE(%(context)s::jsonb, s.context),
       goal_state = CASE WHEN %(pause)s <> '' AND s.goal_state = 'active' THEN 'paused' ELSE s.goal_state END,
       goal_reason = CASE WHEN %(pause)s <> '' AND s.goal_state = 'active' THEN %(pause)s ELSE s.goal_reason END
FROM ended JOIN copilot_session old ON old.id = ended.session_id WHERE s.id = ended.session_id
RETURNING ended.run_ids, ended.stop_through, s.title, s.pinned, s.archived_at IS NOT NULL AS archived, s.title_origin,
          ended.cancel_reason, s.depth > 0 AS child, s.goal_state,
          CASE WHEN old.goal_state = 'active' AND s.goal_state = 'paused' THEN s.goal_reason ELSE '' END AS goal_paused,
          ended.origin, ended.seconds, {NEXT_THROTTLED_TURNS.format(turn="ended")} AS throttled_turn_ids,
          ARRAY(SELECT f.session_id FROM copilot_owedresult f WHERE f.session_id = s.id AND f.outcome = ''
                UNION SELECT f.session_id FROM copilot_owedresult f WHERE f.child_id = s.id AND f.outcome = ''
               ) AS sessions_owed_results
"""  # noqa: S608 - the texts are ours


class _EndedRow(NamedTuple):
    run_ids: str | list[str]
    stop_through: int | None
    title: str
    pinned: bool
    archived: bool
    title_origin: str
    cancel_reason: Literal[CancelReason, ""]
    child: bool
    goal_state: str
    goal_paused: str
    origin: str
    seconds: float
    throttled_turn_ids: list[UUID]
    sessions_owed_results: list[UUID]


def end_turn(
    turn_id: UUID,
    fence: int,
    to: Turn.Status,
    *,
    failure_code: str = "",
    limit_code: str = "",
    reason: str = "",
    summary: TurnSummary | None = None,
    context: ContextUsage | None = None,
    override: bool = False,
    unless_pending: bool = False,
    unless_running: bool = False,
    send_signal: bool = True,
) -> EndedTurn:
    """End the turn: the only statement that does, and it succeeds once.

    `override` also raises the fence, so that the worker that ran the turn can write no more.

    `unless_pending` refuses while messages wait that the turn might still take; one statement checks and
    ends.

    `send_signal` is off when the caller sends `turn_ended` itself, once the costs are recorded.
    """
    row = fetch_one(
        _EndedRow,
        _END_TURN,
        {
            "to": to,
            "turn": turn_id,
            "fence": fence,
            "raise": 1 if override else 0,
            "from": [
                status.value
                for status in ALLOWED_TRANSITIONS[to]
                if not (unless_running and status == RUNNING)
            ],
            "failure": failure_code,
            "limit": limit_code,
            "reason": reason,
            "cancelled": to == CANCELLED,
            "summary": _json.encode(summary).decode() if summary else "{}",
            "model": summary.model if summary else "",
            "context": _json.encode(context).decode() if context else None,
            "unless_pending": unless_pending,
            "pause": _goal_pause_reason(to, failure_code=failure_code, limit_code=limit_code, reason=reason),
        },
    )
    if row is None:
        raise TurnConflict(f"turn {turn_id} cannot become {to} under fence {fence}")
    if send_signal:
        signals.send_turn_signal(signals.turn_ended, turn_id, row.origin)
    for throttled_turn_id in row.throttled_turn_ids:
        transaction.on_commit(partial(wake_worker, throttled_turn_id))
    for owed_session_id in row.sessions_owed_results:
        transaction.on_commit(partial(enqueue_follow_ups, owed_session_id))
    transaction.on_commit(
        partial(
            _count_ending,
            to,
            code=limit_code or failure_code,
            origin=row.origin,
            seconds=row.seconds,
            summary=summary,
        )
    )
    return EndedTurn(
        run_ids=decode_jsonb(row.run_ids, list[str]),
        stop_through=row.stop_through,
        title=row.title,
        pinned=row.pinned,
        archived=row.archived,
        title_origin=row.title_origin,
        cancel_reason=row.cancel_reason or "user",
        child=row.child,
        goal_state=row.goal_state,
        goal_paused=row.goal_paused,
    )


def _count_ending(
    to: Turn.Status, *, code: str, origin: str, seconds: float, summary: TurnSummary | None
) -> None:
    """Count the ending. A channel that is not declared counts as `other`, because labels are a closed set."""
    metrics.executions_ended.labels(
        outcome=to.value,
        kind="scheduled_run" if origin == "schedule" else "turn",
        origin=origin if origin in METRIC_ORIGINS else "other",
    ).inc()
    if code in LIMIT_CODES:
        metrics.turn_limits.labels(code).inc()
    metrics.turn_seconds.observe(seconds)
    if summary is not None and summary.first_token_ms is not None:
        metrics.first_event_seconds.observe(summary.first_token_ms / 1000)


def _goal_pause_reason(to: Turn.Status, *, failure_code: str, limit_code: str, reason: str) -> str:
    """Return why this ending pauses a goal; empty after an answer, or when the user sent another message."""
    if to == FAILED:
        return f"The turn failed: {failure_code}."
    if to == CANCELLED:
        return "" if reason == "abandoned" else "The turn was stopped."
    return f"A limit ended the turn: {limit_code}." if limit_code else ""


def find_own_ending(turn_id: UUID, fence: int, to: Turn.Status) -> EndedTurn | None:
    """Find the ending this fence gave the turn, after the answer to it was lost in an outage."""
    turn = Turn.objects.filter(pk=turn_id, fence=fence, status=to).select_related("session").first()
    if turn is None:
        return None
    return EndedTurn(
        run_ids=list(turn.run_ids),
        stop_through=turn.stop_through,
        title=turn.session.title,
        pinned=turn.session.pinned,
        archived=turn.session.archived_at is not None,
        title_origin=turn.session.title_origin,
        cancel_reason=get_cancel_reason(turn),
        child=turn.session.depth > 0,
        goal_state=turn.session.goal_state,
    )


def get_cancel_reason(turn: Turn) -> CancelReason:
    match turn.cancel_reason:
        case "abandoned" | "parent":
            return turn.cancel_reason
        case _:
            return "user"
