"""Executions as diagnostics sees them: querysets to narrow, never rows to change (D1, D3)."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from django.db import connection
from django.db.models import Q, QuerySet

from copilot.evidence import Liveness as Liveness
from copilot.evidence import Suspect as Suspect
from copilot.evidence import judge as judge
from copilot.evidence import suspects as suspects
from copilot.models import Message, Session, Turn

Executions: TypeAlias = QuerySet[Turn]
Sessions: TypeAlias = QuerySet[Session]
Execution = Turn

QUEUED, RUNNING, WAITING = Turn.Status.QUEUED, Turn.Status.RUNNING, Turn.Status.WAITING
SUCCEEDED, FAILED, CANCELLED = Turn.Status.SUCCEEDED, Turn.Status.FAILED, Turn.Status.CANCELLED
UNFINISHED, ENDINGS = Turn.UNFINISHED, Turn.ENDINGS

# Each of these is what a partial index holds: a count looks at unfinished rows or at recent endings, never at all.
NOT_ENDED = Q(ended_at=None)
STILL_OPEN = Q(status__in=[status.value for status in UNFINISHED])


def everything() -> Executions:
    return Turn.objects.all()


def pending_messages() -> int:
    """Messages that wait behind a turn, or for one."""
    return Message.objects.filter(sequence=None, dropped_at=None).count()


# The same for the sweep that starts them and for whoever counts them (D3).
_STRANDED = """
SELECT DISTINCT m.session_id FROM copilot_message m
WHERE m.sequence IS NULL AND m.dropped_at IS NULL AND m.created_at <= now() - %(seconds)s * interval '1 second'
  AND (%(owner)s::integer IS NULL OR m.session_id IN (SELECT id FROM copilot_session WHERE owner_id = %(owner)s))
  AND NOT EXISTS (SELECT 1 FROM copilot_turn t WHERE t.session_id = m.session_id
                  AND t.status IN ('queued', 'running', 'waiting'))
  AND (m.run_id IS NOT NULL OR COALESCE(
        (SELECT t.status = 'succeeded' OR t.ended_at < m.created_at OR COALESCE(t.stop_through < m.accept_number, false)
         FROM copilot_turn t WHERE t.session_id = m.session_id ORDER BY t.created_at DESC LIMIT 1), true))
LIMIT 2000
"""  # many may wait for a limit: they must not hide those that wait for nothing


def stranded_sessions(*, owner_id: int | None = None, seconds: float = 0) -> list[UUID]:
    """Whose messages wait, for so long, although nothing runs that they could wait for."""
    with connection.cursor() as cursor:
        cursor.execute(_STRANDED, {"owner": owner_id, "seconds": seconds})
        return [row[0] for row in cursor.fetchall()]


def owners_of(session_ids: list[UUID]) -> dict[UUID, int]:
    return dict(Session.objects.filter(pk__in=session_ids).values_list("pk", "owner_id"))
