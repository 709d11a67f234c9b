"""Read messages as the model needs them: everything since the newest valid summary, or selected rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from django.db import connection
from django.db.models import Max

from copilot.chat.message_rows import MessageRow
from copilot.models import Message
from copilot.realtime.payloads import AttachmentPayload

_COLUMNS = """
SELECT m.id::text, m.sequence, m.kind, m.content, m.data, m.call_id, m.turn_id::text, m.hidden, m.streaming,
       m.attachments, m.server_context, m.replay, m.mid_turn, m.model
FROM copilot_message m
"""
# A summary replaces everything up to its anchor, except the rows it keeps, which follow it word for word.
_NEWEST_SUMMARY = """
WITH newest AS MATERIALIZED (
    SELECT id, COALESCE((data->>'anchor')::bigint, sequence) AS anchor, COALESCE(data->'kept', '[]') AS kept
    FROM copilot_message WHERE session_id = %(session)s AND kind = 'summary' AND hidden = ''
    ORDER BY sequence DESC LIMIT 1
)
"""
_AFTER_SUMMARY = """
WHERE m.session_id = %(session)s AND m.hidden = '' AND m.kind <> 'summary'
  AND m.sequence > COALESCE((SELECT anchor FROM newest), 0)
UNION ALL
"""
_SUMMARY_AND_KEPT_ROWS = """
WHERE m.hidden = '' AND m.id = ANY (ARRAY(
    SELECT id FROM newest UNION ALL SELECT jsonb_array_elements_text(kept)::uuid FROM newest))
"""
_SELECT_ROWS_FOR_MODEL = _NEWEST_SUMMARY + _COLUMNS + _AFTER_SUMMARY + _COLUMNS + _SUMMARY_AND_KEPT_ROWS
_SELECT_REQUESTS = (
    _COLUMNS
    + """
WHERE m.turn_id = %s AND m.kind = 'user' AND m.hidden = '' AND m.sequence IS NOT NULL ORDER BY m.sequence
"""
)
# The calls of a round precede its results, so a call after a result begins the next round. Only the rows of the
# requested rounds are read in full.
_ROUNDS = """
WITH tools AS (
    SELECT id, sequence, kind = 'tool_call' AND LAG(kind) OVER turn IS DISTINCT FROM 'tool_call' AS begins
    FROM copilot_message
    WHERE turn_id = %(turn)s AND sequence < %(before)s AND kind IN ('tool_call', 'tool_result') AND hidden = ''
    WINDOW turn AS (ORDER BY sequence)
), counted AS (
    SELECT id, count(*) FILTER (WHERE begins) OVER (ORDER BY sequence DESC) - begins::int AS later FROM tools
)
"""
_LAST_ROUNDS = "JOIN counted ON counted.id = m.id WHERE counted.later < %(rounds)s ORDER BY m.sequence"
_SELECT_TOOL_ROWS = _ROUNDS + _COLUMNS + _LAST_ROUNDS


def list_rows_for_model(session_id: UUID) -> list[MessageRow]:
    """List everything since the newest valid summary, which comes first, in order."""
    with connection.cursor() as cursor:
        cursor.execute(_SELECT_ROWS_FOR_MODEL, {"session": session_id})
        rows = [_parse_row(row) for row in cursor.fetchall()]
    return sorted(rows, key=lambda row: (row.kind != "summary", row.sequence))


def list_requests_of_turn(turn_id: UUID) -> list[MessageRow]:
    with connection.cursor() as cursor:
        cursor.execute(_SELECT_REQUESTS, [turn_id])
        return [_parse_row(row) for row in cursor.fetchall()]


def list_tool_rows(turn_id: UUID, *, before: int, rounds: int) -> list[MessageRow]:
    with connection.cursor() as cursor:
        cursor.execute(_SELECT_TOOL_ROWS, {"turn": turn_id, "before": before, "rounds": rounds})
        return [_parse_row(row) for row in cursor.fetchall()]


def get_last_sequence(session_id: UUID) -> int:
    return Message.objects.filter(session=session_id).aggregate(last=Max("sequence"))["last"] or 0


def has_content_to_compact(session_id: UUID) -> bool:
    kinds = {row.kind for row in list_rows_for_model(session_id)}
    return "user" in kinds and bool(kinds & {"assistant", "tool_result"})


def list_rows_by_id(row_ids: Sequence[UUID]) -> list[MessageRow]:
    with connection.cursor() as cursor:
        cursor.execute(_COLUMNS + "WHERE m.id = ANY(%s)", [list(row_ids)])
        rows_by_id = {row[0]: _parse_row(row) for row in cursor.fetchall()}
    return [rows_by_id[str(row_id)] for row_id in row_ids]


def _parse_row(row: tuple[Any, ...]) -> MessageRow:
    return MessageRow(
        id=row[0],
        sequence=row[1],
        kind=row[2],
        content=row[3],
        data=msgspec.json.decode(row[4]),
        call_id=row[5],
        turn_id=row[6],
        hidden=row[7],
        streaming=row[8],
        attachments=msgspec.json.decode(row[9], type=tuple[AttachmentPayload, ...]),
        server_context=row[10],
        replay=msgspec.json.decode(row[11], type=tuple[str, ...]),
        mid_turn=row[12],
        model=row[13],
    )


def has_turn_answered(turn_id: UUID) -> bool:
    rows = Message.objects.filter(turn_id=turn_id, kind="assistant", hidden="")
    return rows.exclude(content="").exists()


def has_notice(turn_id: UUID, code: str) -> bool:
    return Message.objects.filter(turn_id=turn_id, kind="notice", data__code=code).exists()


def list_notice_details(session_id: UUID, code: str) -> set[str]:
    rows = Message.objects.filter(session_id=session_id, kind="notice", data__code=code)
    return {str(details) for details in rows.values_list("data__details", flat=True)}
