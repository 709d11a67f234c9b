"""Rows of a turn: appended, checkpointed, finished, retracted; each statement names its fence (T5.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID, uuid4

import msgspec
from django.db import IntegrityError, connection, transaction
from django.db.models import Max

from copilot.events import JSON, AttachmentView
from copilot.history.holding import own
from copilot.lasting import LATER
from copilot.models import Message

_json = msgspec.json.Encoder()


@dataclass(frozen=True, kw_only=True)
class NewRow:
    """A row a turn makes; it gets the next place of its session."""

    id: UUID
    turn_id: UUID
    fence: int
    kind: str
    content: str = ""
    data: dict[str, JSON] = field(default_factory=dict)
    call_id: str | None = None
    model: str = ""
    streaming: bool = False
    attachments: Sequence[AttachmentView] = ()  # pictures of a result (A9.9)


@dataclass(frozen=True)
class Placed:
    sequence: int
    created_at: datetime


_APPEND = f"""
INSERT INTO copilot_message (id, session_id, turn_id, sequence, kind, content, data, call_id, model, streaming,
                             attachments)
SELECT r.id, t.session_id, t.id, last.sequence + r.ordinal, r.kind, r.content, r.data, r.call_id, r.model, r.streaming,
       r.attachments
FROM unnest(%s::uuid[], %s::uuid[], %s::bigint[], %s::int[], %s::text[], %s::text[], %s::jsonb[], %s::text[],
            %s::text[], %s::boolean[], %s::jsonb[])
     AS r(id, turn_id, fence, ordinal, kind, content, data, call_id, model, streaming, attachments)
JOIN copilot_turn t ON t.id = r.turn_id AND t.fence = r.fence AND t.status = 'running'
CROSS JOIN LATERAL (SELECT COALESCE(MAX(m.sequence), 0) AS sequence FROM copilot_message m
                    WHERE m.session_id = t.session_id) last
WHERE %s OR {LATER}
FOR SHARE OF t
ON CONFLICT DO NOTHING
RETURNING id, sequence, created_at
"""  # noqa: S608 - both texts are ours


def append(rows: Sequence[NewRow]) -> dict[UUID, Placed]:
    """Store rows of any number of turns in one statement; a row missing from the answer was refused.

    Refused is a row of an older fence, and a second result for one call. The share lock makes a takeover
    wait for this statement, and this statement see a takeover that came first. Texts that only begin, and whose
    words are not stored yet either, do not wait for the disk.
    """
    ordinals: dict[UUID, int] = {}
    numbers = []
    for row in rows:
        ordinals[row.turn_id] = ordinals.get(row.turn_id, 0) + 1
        numbers.append(ordinals[row.turn_id])
    with connection.cursor() as cursor:
        cursor.execute(
            _APPEND,
            [
                [row.id for row in rows],
                [row.turn_id for row in rows],
                [row.fence for row in rows],
                numbers,
                [row.kind for row in rows],
                [row.content for row in rows],
                [_json.encode(row.data).decode() for row in rows],
                [row.call_id for row in rows],
                [row.model for row in rows],
                [row.streaming for row in rows],
                [_json.encode(row.attachments).decode() for row in rows],
                not all(row.streaming and not row.content for row in rows),
            ],
        )
        return {identifier: Placed(sequence, at) for identifier, sequence, at in cursor.fetchall()}


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A streaming row as it stands now."""

    row_id: UUID
    turn_id: UUID
    fence: int
    content: str
    streaming: bool


def save(drafts: Sequence[Draft]) -> set[tuple[UUID, int]]:
    """Checkpoint or finish streaming rows in one statement; which (row, fence) pairs still belonged together."""
    ordered = sorted(drafts, key=lambda draft: draft.row_id)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_message m SET content = d.content, streaming = d.streaming
            FROM unnest(%s::uuid[], %s::uuid[], %s::bigint[], %s::text[], %s::boolean[])
                 AS d(id, turn_id, fence, content, streaming)
            JOIN copilot_turn t ON t.id = d.turn_id AND t.fence = d.fence AND t.status = 'running'
            WHERE m.id = d.id AND m.streaming
            RETURNING m.id, d.fence
            """,
            [
                [draft.row_id for draft in ordered],
                [draft.turn_id for draft in ordered],
                [draft.fence for draft in ordered],
                [draft.content for draft in ordered],
                [draft.streaming for draft in ordered],
            ],
        )
        return {(row_id, fence) for row_id, fence in cursor.fetchall()}


def keep_replay(row_id: UUID, turn_id: UUID, fence: int, data: str) -> None:
    """Opaque provider data of this turn's tool loop, apart from what people see (A14.4)."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_message m SET replay = m.replay || to_jsonb(ARRAY[%s::text]) FROM copilot_turn t
            WHERE m.id = %s AND t.id = %s AND t.fence = %s AND t.status = 'running' AND m.turn_id = t.id
            """,
            [data, row_id, turn_id, fence],
        )


def retract(turn_id: UUID, fence: int, row_ids: Sequence[UUID]) -> None:
    """Hide the rows of a step that is tried again; they are kept for audit (A7.3)."""
    with transaction.atomic():
        own(turn_id, fence)
        Message.objects.filter(turn=turn_id, pk__in=row_ids).update(
            hidden=Message.Hidden.RETRACTED, streaming=False
        )


def post_notice(session_id: UUID, turn_id: UUID | None, code: str) -> UUID:
    """A notice for people that no running turn writes; should one run, its row may take the place first."""
    while True:
        try:
            return _posted(session_id, turn_id, code)
        except IntegrityError:
            continue


def _posted(session_id: UUID, turn_id: UUID | None, code: str) -> UUID:
    row = uuid4()
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO copilot_message (id, session_id, turn_id, sequence, kind, data)
            SELECT %s, %s, %s, COALESCE(MAX(sequence), 0) + 1, 'notice', %s::jsonb
            FROM copilot_message WHERE session_id = %s
            """,
            [row, session_id, turn_id, _json.encode({"code": code}).decode(), session_id],
        )
    return row


Grow = Callable[[str, dict[str, str]], dict[str, str]]  # session, checkpoints by row id → present texts


@dataclass(frozen=True)
class ClosedRows:
    """Streaming rows that became final, as (id, kind), and the results that calls got."""

    ended: list[tuple[UUID, str]]
    results: list[UUID]


def close_open_rows(
    session_id: UUID,
    turn_id: UUID,
    result: str,
    *,
    grow: Grow,
    fence: int | None = None,
    cancelled: bool = False,
) -> ClosedRows:
    """What a lost run left open: streaming rows become final, calls without a result get one (A3.5)."""
    growing = {str(row.pk): row for row in Message.objects.filter(turn=turn_id, streaming=True)}
    texts = grow(str(session_id), {row_id: row.content for row_id, row in growing.items()}) if growing else {}
    with transaction.atomic():
        if fence is not None:
            own(turn_id, fence)
        for row_id, row in growing.items():
            row.content, row.streaming = texts.get(row_id, row.content), False
            row.save(update_fields=["content", "streaming"])
        answered = Message.objects.filter(turn=turn_id, kind="tool_result").values("call_id")
        calls = Message.objects.filter(turn=turn_id, kind="tool_call", hidden="").exclude(
            call_id__in=answered
        )
        last = Message.objects.filter(session=session_id).aggregate(last=Max("sequence"))["last"] or 0
        results = Message.objects.bulk_create(
            Message(
                session_id=session_id,
                turn_id=turn_id,
                sequence=last + place,
                kind="tool_result",
                content=result,
                call_id=call.call_id,
                data=result_data(call.data["tool"], success=False, preview=result)
                | ({"cancelled": True} if cancelled else {}),
            )
            for place, call in enumerate(calls.order_by("sequence"), start=1)
        )
    return ClosedRows([(row.pk, row.kind) for row in growing.values()], [row.pk for row in results])


def result_data(tool: str, *, success: bool, preview: str, duration_ms: int = 0) -> dict[str, JSON]:
    return {
        "tool": tool,
        "success": success,
        "preview": preview,
        "duration_ms": duration_ms,
        "truncated": False,
        "file_id": None,
    }
