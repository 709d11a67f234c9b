"""The one check behind every write of a running turn: it is still this fence's (T4.1)."""

from __future__ import annotations

from uuid import UUID

from django.db import connection

from copilot.errors import FenceLost


def own(turn_id: UUID, fence: int) -> tuple[UUID, bool]:
    """Hold the turn against a takeover and a stop for this transaction; its session, and whether it is stopped."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT session_id, stop_requested_at IS NOT NULL FROM copilot_turn
            WHERE id = %s AND fence = %s AND status = 'running' FOR UPDATE
            """,
            [turn_id, fence],
        )
        row = cursor.fetchone()
    if row is None:
        raise FenceLost(f"turn {turn_id} is not held under fence {fence}")
    return row[0], row[1]
