"""Prompts of one turn for another: accepted while their parent runs and their family has room (A21.2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction

from copilot import turns
from copilot.commands import SendMessage
from copilot.errors import TooMany
from copilot.models import Session

# A child is busy from the moment its prompt is accepted, so that counting and accepting leave no gap.
_BUSY = """
SELECT count(*) FROM copilot_session s WHERE s.root_id = %s AND s.id <> %s AND (
    EXISTS (SELECT 1 FROM copilot_turn t WHERE t.session_id = s.id AND t.status IN ('queued', 'running', 'waiting'))
    OR EXISTS (SELECT 1 FROM copilot_message m WHERE m.session_id = s.id AND m.sequence IS NULL
               AND m.dropped_at IS NULL AND m.run_id IS NOT NULL))
"""


@contextmanager
def room_for(command: SendMessage) -> Iterator[None]:
    """Hold the family and the parent until the prompt's row stands; other messages pass without a statement."""
    if command.parent is None:
        yield
        return
    root_id = Session.objects.values_list("root_id", flat=True).filter(pk=command.session_id).first()
    with transaction.atomic():
        _hold_family(root_id or command.session_id)
        turns.hold_running(command.parent.turn_id, command.parent.fence)
        if root_id is not None and _busy(root_id, command.session_id) >= settings.SUB_SESSIONS_AT_ONCE:
            raise TooMany(
                f"{settings.SUB_SESSIONS_AT_ONCE} sub-sessions of this conversation are running. "
                "Wait for one to end before you start another.",
                code="too_many_sub_sessions",
            )
        yield


def _hold_family(root_id: UUID) -> None:
    """One at a time for each root; a row lock would cross those of turns that end."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 21))", [str(root_id)])


def _busy(root_id: UUID, session_id: UUID) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_BUSY, [root_id, session_id])
        return int(cursor.fetchone()[0])
