"""A turn's one ending: a single statement that names where it may come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args
from uuid import UUID

import msgspec
from django.db import connection, transaction

from copilot import metrics, ports
from copilot.context import CHANNELS
from copilot.errors import TurnConflict
from copilot.events import CancelReason, ContextUse, Event, GoalJudged, SessionChanged, TurnSummary
from copilot.models import Turn
from copilot.notices import LimitCode
from copilot.turns import hooks
from copilot.turns.running import CANCELLED, FAILED, NEXT_IN_LINE, REACHED_FROM, RUNNING, loaded

LIMITS = frozenset(get_args(LimitCode))
ORIGINS = frozenset({*CHANNELS, "telegram", "discord", "slack"})
_json = msgspec.json.Encoder()


@dataclass(frozen=True, kw_only=True)
class Ended:
    run_ids: list[str]
    stop_through: int | None
    cancel_reason: CancelReason
    child: bool
    title: str
    pinned: bool
    archived: bool
    title_origin: str = ""
    goal_state: str = ""
    goal_paused: str = ""  # why, if this ending has paused the session's goal (A30.4)

    def news(self) -> list[Event]:
        """What those who watch the session are told besides the ending itself."""
        paused: list[Event] = []
        if self.goal_paused:
            paused.append(GoalJudged(state="paused", reason=self.goal_paused))
        return [
            *paused,
            SessionChanged(
                title=self.title, pinned=self.pinned, archived=self.archived, state="idle", child=self.child
            ),
        ]


_END = f"""
WITH ended AS (
    UPDATE copilot_turn SET status = %(to)s, ended_at = now(), failure_code = %(failure)s, limit_code = %(limit)s,
           cancel_reason = CASE WHEN %(cancelled)s THEN COALESCE(NULLIF(cancel_reason, ''), %(reason)s)
                           ELSE '' END, summary = %(summary)s::jsonb, model = COALESCE(NULLIF(%(model)s, ''), model),
           fence = %(fence)s + %(raise)s
    WHERE id = %(turn)s AND fence = %(fence)s AND status = ANY(%(from)s)
      AND NOT (%(unless_pending)s AND stop_requested_at IS NULL AND EXISTS (
          SELECT 1 FROM copilot_message m WHERE m.session_id = copilot_turn.session_id
          AND m.sequence IS NULL AND m.dropped_at IS NULL))
    RETURNING session_id, run_ids, stop_through, cancel_reason, origin, payer_id, address,
              extract(epoch FROM ended_at - created_at)::float8 AS seconds
)
UPDATE copilot_session s SET active_at = now(), fence = GREATEST(s.fence, %(fence)s + %(raise)s),
       context = COALESCE(%(context)s::jsonb, s.context),
       goal_state = CASE WHEN %(pause)s <> '' AND s.goal_state = 'active' THEN 'paused' ELSE s.goal_state END,
       goal_reason = CASE WHEN %(pause)s <> '' AND s.goal_state = 'active' THEN %(pause)s ELSE s.goal_reason END
FROM ended JOIN copilot_session old ON old.id = ended.session_id WHERE s.id = ended.session_id
RETURNING ended.run_ids, ended.stop_through, s.title, s.pinned, s.archived_at IS NOT NULL, s.title_origin,
          ended.cancel_reason, s.depth > 0, s.goal_state,
          CASE WHEN old.goal_state = 'active' AND s.goal_state = 'paused' THEN s.goal_reason ELSE '' END,
          ended.origin, ended.seconds, {NEXT_IN_LINE.format(turn="ended")}
"""  # noqa: S608 - the texts are ours


def end(
    turn_id: UUID,
    fence: int,
    to: Turn.Status,
    *,
    failure_code: str = "",
    limit_code: str = "",
    reason: str = "",
    summary: TurnSummary | None = None,
    context: ContextUse | None = None,
    override: bool = False,
    unless_pending: bool = False,
    unless_running: bool = False,
    telling: bool = True,
) -> Ended:
    """The one ending. `override` raises the fence too, so that the worker it is taken from can write no more.

    `unless_pending` refuses while messages wait that the turn might still take: one statement asks and ends.
    Other apps are told of it, unless the caller does so itself (`telling`) once the costs are recorded.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            _END,
            {
                "to": to,
                "turn": turn_id,
                "fence": fence,
                "raise": 1 if override else 0,
                "from": [
                    status.value for status in REACHED_FROM[to] if not (unless_running and status == RUNNING)
                ],
                "failure": failure_code,
                "limit": limit_code,
                "reason": reason,
                "cancelled": to == CANCELLED,
                "summary": _json.encode(summary).decode() if summary else "{}",
                "model": summary.model if summary else "",
                "context": _json.encode(context).decode() if context else None,
                "unless_pending": unless_pending,
                "pause": _pause(to, failure_code=failure_code, limit_code=limit_code, reason=reason),
            },
        )
        row = cursor.fetchone()
    if row is None:
        raise TurnConflict(f"turn {turn_id} cannot become {to} under fence {fence}")
    if telling:
        hooks.tell(turn_id, row[10], "ended")
    for waiting in row[12]:
        transaction.on_commit(partial(ports.send_turn, waiting))
    transaction.on_commit(
        partial(_count, to, code=limit_code or failure_code, origin=row[10], seconds=row[11], summary=summary)
    )
    return _as_ended(row)


def _as_ended(row: Sequence[Any]) -> Ended:
    """In the order of the statement's RETURNING."""
    return Ended(
        run_ids=loaded(row[0], list[str]),
        stop_through=row[1],
        title=row[2],
        pinned=row[3],
        archived=row[4],
        title_origin=row[5],
        cancel_reason=row[6] or "user",
        child=row[7],
        goal_state=row[8],
        goal_paused=row[9],
    )


def _count(to: Turn.Status, *, code: str, origin: str, seconds: float, summary: TurnSummary | None) -> None:
    """In memory, once a turn (D16); a channel that declared nothing is `other`: labels are a closed set."""
    metrics.executions_ended.labels(
        outcome=to.value,
        kind="scheduled_run" if origin == "schedule" else "turn",
        origin=origin if origin in ORIGINS else "other",
    ).inc()
    if code in LIMITS:
        metrics.turn_limits.labels(code).inc()
    metrics.turn_seconds.observe(seconds)
    if summary is not None and summary.first_token_ms is not None:
        metrics.first_event_seconds.observe(summary.first_token_ms / 1000)


def _pause(to: Turn.Status, *, failure_code: str, limit_code: str, reason: str) -> str:
    """Why this ending pauses a goal; nothing after an answer, or when the user went on with something else."""
    if to == FAILED:
        return f"The turn failed: {failure_code}."
    if to == CANCELLED:
        return "" if reason == "abandoned" else "The turn was stopped."
    return f"A limit ended the turn: {limit_code}." if limit_code else ""


def ended_already(turn_id: UUID, fence: int, to: Turn.Status) -> Ended | None:
    """The ending that this fence gave the turn, when the answer to it was lost on the way."""
    turn = Turn.objects.filter(pk=turn_id, fence=fence, status=to).select_related("session").first()
    if turn is None:
        return None
    return Ended(
        run_ids=list(turn.run_ids),
        stop_through=turn.stop_through,
        title=turn.session.title,
        pinned=turn.session.pinned,
        archived=turn.session.archived_at is not None,
        title_origin=turn.session.title_origin,
        cancel_reason=cancel_reason(turn),
        child=turn.session.depth > 0,
        goal_state=turn.session.goal_state,
    )


def cancel_reason(turn: Turn) -> CancelReason:
    """Who had the turn cancelled; a person, unless its row says otherwise."""
    match turn.cancel_reason:
        case "abandoned" | "parent":
            return turn.cancel_reason
        case _:
            return "user"
