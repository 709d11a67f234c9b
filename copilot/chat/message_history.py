"""Read messages as the model needs them: everything since the newest valid summary, or selected rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec
from django.db.models import Max

from config.core.db import Query, fetch_all
from copilot.chat.message_rows import MessageRow
from copilot.models import Message
from copilot.realtime.payloads import AttachmentPayload, MessageKind

_COLUMNS = """
SELECT m.id::text AS id, m.sequence, m.kind, m.content, m.data, m.call_id, m.turn_id::text AS turn_id, m.hidden, m.streaming,
       m.attachments, m.server_context, m.replay, m.mid_turn, m.model
FROM copilot_message m
"""


class StoredRow(NamedTuple):
    """The columns above; jsonb comes as text."""

    id: str
    sequence: int
    kind: MessageKind
    content: str
    data: str
    call_id: str | None
    turn_id: str | None
    hidden: str
    streaming: bool
    attachments: str
    server_context: str
    replay: str
    mid_turn: bool
    model: str


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
_SELECT_ROWS_OF_TURN = _SELECT_ROWS_FOR_MODEL.replace(
    "%(session)s", "(SELECT session_id FROM copilot_turn WHERE id = %(turn)s)"
)
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
    return parse_rows_for_model(fetch_all(StoredRow, _SELECT_ROWS_FOR_MODEL, {"session": session_id}))


def build_rows_query(turn_id: UUID) -> Query[StoredRow]:
    """Build the query of list_rows_for_model for the session of a turn."""
    return Query(StoredRow, _SELECT_ROWS_OF_TURN, {"turn": turn_id})


def parse_rows_for_model(rows: Sequence[StoredRow]) -> list[MessageRow]:
    return sorted(map(_parse_row, rows), key=lambda row: (row.kind != "summary", row.sequence))


def list_requests_of_turn(turn_id: UUID) -> list[MessageRow]:
    return [_parse_row(row) for row in fetch_all(StoredRow, _SELECT_REQUESTS, [turn_id])]


def list_tool_rows(turn_id: UUID, *, before: int, rounds: int) -> list[MessageRow]:
    rows = fetch_all(StoredRow, _SELECT_TOOL_ROWS, {"turn": turn_id, "before": before, "rounds": rounds})
    return [_parse_row(row) for row in rows]


def get_last_sequence(session_id: UUID) -> int:
    return Message.objects.filter(session=session_id).aggregate(last=Max("sequence"))["last"] or 0


def has_content_to_compact(session_id: UUID) -> bool:
    kinds = {row.kind for row in list_rows_for_model(session_id)}
    return "user" in kinds and bool(kinds & {"assistant", "tool_result"})


def list_rows_by_id(row_ids: Sequence[UUID]) -> list[MessageRow]:
    rows = fetch_all(StoredRow, _COLUMNS + "WHERE m.id = ANY(%s)", [list(row_ids)])
    rows_by_id = {row.id: _parse_row(row) for row in rows}
    return [rows_by_id[str(row_id)] for row_id in row_ids]


def _parse_row(row: StoredRow) -> MessageRow:
    return MessageRow(
        id=row.id,
        sequence=row.sequence,
        kind=row.kind,
        content=row.content,
        data=msgspec.json.decode(row.data),
        call_id=row.call_id,
        turn_id=row.turn_id,
        hidden=row.hidden,
        streaming=row.streaming,
        attachments=msgspec.json.decode(row.attachments, type=tuple[AttachmentPayload, ...]),
        server_context=row.server_context,
        replay=msgspec.json.decode(row.replay, type=tuple[str, ...]),
        mid_turn=row.mid_turn,
        model=row.model,
    )


def has_turn_answered(turn_id: UUID) -> bool:
    rows = Message.objects.filter(turn_id=turn_id, kind="assistant", hidden="")
    return rows.exclude(content="").exists()


def has_notice(turn_id: UUID, code: str) -> bool:
    return Message.objects.filter(turn_id=turn_id, kind="notice", data__code=code).exists()


def list_notice_details(session_id: UUID, code: str) -> set[str]:
    rows = Message.objects.filter(session_id=session_id, kind="notice", data__code=code)
    return {str(details) for details in rows.values_list("data__details", flat=True)}
