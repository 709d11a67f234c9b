"""Rows for the model: everything since the newest valid summary, or the few that are named (A16.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from django.db import connection

from copilot.events import AttachmentView
from copilot.models import Message
from copilot.rows import Row

_COLUMNS = """
SELECT id::text, sequence, kind, content, data, call_id, turn_id::text, hidden, streaming, attachments,
       server_context, replay, mid_turn, model
FROM copilot_message
"""
_SINCE_THE_SUMMARY = """
WHERE session_id = %s AND hidden = ''
  AND sequence >= COALESCE((SELECT MAX(sequence) FROM copilot_message
                            WHERE session_id = %s AND kind = 'summary' AND hidden = ''), 0)
ORDER BY sequence
"""


def rows_for_model(session_id: UUID) -> list[Row]:
    """Everything since the newest valid summary, in order (A16.1)."""
    with connection.cursor() as cursor:
        cursor.execute(_COLUMNS + _SINCE_THE_SUMMARY, [session_id, session_id])
        return [_row(row) for row in cursor.fetchall()]


def rows_named(row_ids: Sequence[UUID]) -> list[Row]:
    """In the order named."""
    with connection.cursor() as cursor:
        cursor.execute(_COLUMNS + "WHERE id = ANY(%s)", [list(row_ids)])
        found = {row[0]: _row(row) for row in cursor.fetchall()}
    return [found[str(row_id)] for row_id in row_ids]


def _row(row: tuple[Any, ...]) -> Row:
    return Row(
        id=row[0],
        sequence=row[1],
        kind=row[2],
        content=row[3],
        data=msgspec.json.decode(row[4]),
        call_id=row[5],
        turn_id=row[6],
        hidden=row[7],
        streaming=row[8],
        attachments=msgspec.json.decode(row[9], type=tuple[AttachmentView, ...]),
        server_context=row[10],
        replay=msgspec.json.decode(row[11], type=tuple[str, ...]),
        mid_turn=row[12],
        model=row[13],
    )


def noticed(session_id: UUID, code: str) -> set[str]:
    """What notices of this code have told the session about already."""
    rows = Message.objects.filter(session_id=session_id, kind="notice", data__code=code)
    return {str(details) for details in rows.values_list("data__details", flat=True)}
