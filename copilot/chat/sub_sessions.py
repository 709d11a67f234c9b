"""Create sub-sessions, and accept their prompts only while the parent runs and a slot is free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from django.db import connection, transaction

from config.core.errors import Conflict, TooManyRequests
from copilot.chat import follow_ups, turn_transitions
from copilot.chat.commands import SendMessage
from copilot.models import AgentVersion, Session

# A sub-session is busy from the moment its prompt is accepted, so that there is no gap between count and turn.
MAX_DEPTH = 3
MAX_RUNNING_SUB_SESSIONS = 5  # of one chat
_COUNT_BUSY_SUB_SESSIONS = """
SELECT count(*) FROM copilot_session s WHERE s.root_id = %s AND s.id <> %s AND (
    EXISTS (SELECT 1 FROM copilot_turn t WHERE t.session_id = s.id AND t.status IN ('queued', 'running', 'waiting'))
    OR EXISTS (SELECT 1 FROM copilot_message m WHERE m.session_id = s.id AND m.sequence IS NULL
               AND m.dropped_at IS NULL AND m.run_id IS NOT NULL))
"""


@contextmanager
def reserve_sub_session_slot(command: SendMessage) -> Iterator[None]:
    """Lock the root session and the parent turn until the prompt's row is inserted.

    Other messages pass without a statement.
    """
    if command.parent is None:
        yield
        return
    root_id = Session.objects.values_list("root_id", flat=True).filter(pk=command.session_id).first()
    with transaction.atomic():
        _lock_root_session(root_id or command.session_id)
        turn_transitions.lock_running_parent(command.parent.turn_id, command.parent.fence)
        if (
            root_id is not None
            and _count_busy_sub_sessions(root_id, command.session_id) >= MAX_RUNNING_SUB_SESSIONS
        ):
            raise TooManyRequests(
                f"{MAX_RUNNING_SUB_SESSIONS} sub-sessions of this chat are running already. "
                "Wait for one to end before you start another.",
                code="too_many_sub_sessions",
            )
        yield
        if command.parent.is_owed_result:
            follow_ups.record_owed_result(command.session_id, command.run_id or "")


def _lock_root_session(root_id: UUID) -> None:
    """Take an advisory lock: a row lock could deadlock with those of turns that end."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 21))", [str(root_id)])


def _count_busy_sub_sessions(root_id: UUID, session_id: UUID) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_COUNT_BUSY_SUB_SESSIONS, [root_id, session_id])
        return int(cursor.fetchone()[0])


def create_sub_session(parent: Session, *, agent_version: AgentVersion | None = None) -> Session:
    if parent.depth >= MAX_DEPTH:
        raise Conflict(
            f"This sub-session has depth {parent.depth} and cannot start another. Do the work here.",
            code="too_deep",
        )
    session = Session.objects.create(
        owner_id=parent.owner_id,
        parent=parent,
        root_id=parent.root_id or parent.pk,
        depth=parent.depth + 1,
        agent_version=agent_version,
    )
    session.refresh_from_db()
    return session
