"""A turn without a message: all it does is shorten the conversation (A17.6)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import msgspec
from django.db import connection

from copilot.permissions import NOTHING

_json = msgspec.json.Encoder()

# The same fence and uniqueness as any turn's: the session has one unfinished turn, whatever it is for.
_OPEN = """
WITH fenced AS (
    UPDATE copilot_session SET fence = fence + 1 WHERE id = %(session)s
    RETURNING fence, title, pinned, archived_at IS NOT NULL AS archived, depth > 0 AS child, owner_id
), opened AS (
    INSERT INTO copilot_turn (id, session_id, status, origin, permissions, accepted_through, fence, token,
                              dispatched_at, dispatch_count, purpose, focus, payer_id)
    SELECT %(turn)s, %(session)s, 'queued', %(origin)s, %(permissions)s::jsonb, %(accepted)s, fenced.fence, %(token)s, now(), 1,
           'compaction', %(focus)s, fenced.owner_id
    FROM fenced
)
SELECT title, pinned, archived, child FROM fenced
"""


@dataclass(frozen=True)
class OpenedCompaction:
    title: str
    pinned: bool
    archived: bool
    child: bool


def open_compaction(
    turn_id: UUID, token: UUID, session_id: UUID, *, origin: str, focus: str, accepted_through: int
) -> OpenedCompaction:
    """IntegrityError: a turn is unfinished here. `accepted_through`: chips up to it wait after this turn too."""
    with connection.cursor() as cursor:
        cursor.execute(
            _OPEN,
            {
                "turn": turn_id,
                "token": token,
                "session": session_id,
                "origin": origin,
                "focus": focus,
                "accepted": accepted_through,
                "permissions": _json.encode(NOTHING.to_json()).decode(),  # no tool runs
            },
        )
        return OpenedCompaction(*cursor.fetchone())
