"""The transcript: the only writer of Message. Rows are appended; what was said is never rewritten (T2.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID, uuid4

import msgspec
from django.db import connection, transaction
from django.db.models import Max

from copilot.commands import SendMessage
from copilot.errors import FenceLost
from copilot.events import JSON, AttachmentView
from copilot.models import Message
from copilot.permissions import PermissionsJSON
from copilot.rows import Row

_json = msgspec.json.Encoder()


# --- a message arrives -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accepted:
    accept_number: int
    created_at: datetime


_ACCEPT = """
INSERT INTO copilot_message (id, session_id, kind, content, author, attachments, accept_number, queue_order,
                             run_id, origin, tier, mode, page_context, permissions, server_context)
SELECT %(id)s, s.id, 'user', %(content)s, %(author)s, %(attachments)s, n.number, n.number,
       %(run_id)s, %(origin)s, %(tier)s, %(mode)s, %(page_context)s, %(permissions)s, %(server_context)s
FROM copilot_session s
JOIN auth_user u ON u.id = s.owner_id
CROSS JOIN (SELECT nextval('copilot_accept_numbers') AS number) n
WHERE s.id = %(session_id)s AND s.owner_id = %(user_id)s AND s.deleted_at IS NULL AND u.is_active
ON CONFLICT (session_id, run_id) DO NOTHING
RETURNING accept_number, created_at
"""


def accept(
    message_id: UUID, command: SendMessage, attachments: Sequence[AttachmentView], server_context: str
) -> Accepted | None:
    """Store a message without a place; None when the session is not the user's, or the run_id is taken."""
    with connection.cursor() as cursor:
        cursor.execute(
            _ACCEPT,
            {
                "id": message_id,
                "session_id": command.session_id,
                "user_id": command.user_id,
                "content": command.text,
                "author": command.author,
                "attachments": _json.encode(list(attachments)).decode(),
                "run_id": command.run_id,
                "origin": command.origin,
                "tier": command.tier,
                "mode": command.mode,
                "page_context": _json.encode(command.page_context).decode() if command.page_context else None,
                "permissions": _json.encode(command.permissions.to_json()).decode(),
                "server_context": server_context,
            },
        )
        row = cursor.fetchone()
    return Accepted(*row) if row else None


def discard(message_id: UUID) -> bool:
    """Take back a message that was not accepted after all; False when a turn has taken it already."""
    deleted, _ = Message.objects.filter(pk=message_id, sequence=None, dropped_at=None).delete()
    return bool(deleted)


# --- the pending ones --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pending:
    """A message that waits for its place."""

    id: UUID
    accept_number: int
    queue_order: float
    text: str
    run_id: str | None
    permissions: PermissionsJSON | None = None
    page_url: str = ""
    file_ids: tuple[str, ...] = ()
    arriving: bool = False  # so new that its request may still be deciding what becomes of it


_PENDING = """
SELECT id, accept_number, queue_order, content, run_id, permissions, page_context->>'url',
       ARRAY(SELECT file->>'file_id' FROM jsonb_array_elements(attachments) AS file),
       created_at > now() - interval '5 seconds'
FROM copilot_message
WHERE session_id = %s AND sequence IS NULL AND dropped_at IS NULL
ORDER BY queue_order, accept_number
"""


def pending(session_id: UUID | str, *, lock: bool = False) -> list[Pending]:
    with connection.cursor() as cursor:
        cursor.execute(_PENDING + (" FOR UPDATE" if lock else ""), [session_id])
        return [_pending(*row) for row in cursor.fetchall()]


def _pending(
    message_id: UUID,
    accept_number: int,
    queue_order: float,
    text: str,
    run_id: str | None,
    permissions: str | None,
    page_url: str | None,
    file_ids: list[str],
    arriving: bool,
) -> Pending:
    return Pending(
        id=message_id,
        accept_number=accept_number,
        queue_order=queue_order,
        text=text,
        run_id=run_id,
        permissions=msgspec.json.decode(permissions, type=PermissionsJSON) if permissions else None,
        page_url=page_url or "",
        file_ids=tuple(file_ids),
        arriving=arriving,
    )


def last_accepted(session_id: UUID) -> int | None:
    """The newest accept number among the messages that wait."""
    rows = Message.objects.filter(session=session_id, sequence=None, dropped_at=None)
    return rows.aggregate(last=Max("accept_number"))["last"]  # type: ignore[no-any-return]


def has_pending(session_id: UUID) -> bool:
    return Message.objects.filter(session=session_id, sequence=None, dropped_at=None).exists()


@dataclass(frozen=True, kw_only=True)
class Taking:
    """A pending message that a turn takes, and what its row keeps of the way the model was told."""

    message: Pending
    follow_up: str | None = None  # the block of a tool boundary, "" on its later rows (A13.5)


@dataclass(frozen=True, kw_only=True)
class Start:
    """The message that started a turn; those accepted before it go in front of it: it left room (T6.2)."""

    message_id: UUID
    queue_order: float
    sequence: int


def start_of(turn_id: UUID) -> Start:
    row = Message.objects.filter(turn=turn_id, kind="user").order_by("sequence").first()
    assert row is not None
    assert row.sequence is not None
    order = row.accept_number if row.queue_order is None else row.queue_order
    return Start(message_id=row.pk, queue_order=order or 0.0, sequence=row.sequence)


def take(
    turn_id: UUID, fence: int, choose: Callable[[list[Pending]], list[Taking]], *, start: Start | None = None
) -> list[Taking]:
    """Give the chosen pending messages their place in the conversation, in one transaction (A13.4)."""
    with transaction.atomic():
        session_id, stopped = _own(turn_id, fence)
        chosen = [] if stopped else choose(pending(session_id, lock=True))
        if chosen:
            _enter(turn_id, chosen, _places(session_id, chosen, start), mid_turn=start is None)
    return chosen


def _enter(turn_id: UUID, chosen: list[Taking], places: dict[UUID, int], *, mid_turn: bool) -> None:
    data: list[dict[str, JSON]] = [
        {} if one.follow_up is None else {"follow_up": one.follow_up} for one in chosen
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_message m SET sequence = p.sequence, turn_id = %s, mid_turn = %s, data = p.data
            FROM unnest(%s::uuid[], %s::bigint[], %s::jsonb[]) AS p(id, sequence, data) WHERE m.id = p.id
            """,
            [
                turn_id,
                mid_turn,
                [one.message.id for one in chosen],
                [places[one.message.id] for one in chosen],
                [_json.encode(value).decode() for value in data],
            ],
        )
        cursor.execute(
            """
            UPDATE copilot_turn SET run_ids = run_ids || %s::jsonb,
                   accepted_through = GREATEST(accepted_through, %s) WHERE id = %s
            """,
            [
                _json.encode([one.message.run_id for one in chosen if one.message.run_id]).decode(),
                max(one.message.accept_number for one in chosen),
                turn_id,
            ],
        )


def _own(turn_id: UUID, fence: int) -> tuple[UUID, bool]:
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


def _places(session_id: UUID, chosen: list[Taking], start: Start | None) -> dict[UUID, int]:
    last = Message.objects.filter(session=session_id).aggregate(last=Max("sequence"))["last"] or 0
    messages = [one.message for one in chosen]
    earlier = [one for one in messages if start is not None and one.queue_order < start.queue_order]
    first = start.sequence - len(earlier) if start is not None else 0
    places = {one.id: first + index for index, one in enumerate(earlier)}
    later = [one for one in messages if one.id not in places]
    return places | {one.id: last + 1 + index for index, one in enumerate(later)}


def edit_pending(session_id: UUID, message_id: UUID, text: str) -> bool:
    return bool(
        Message.objects.filter(pk=message_id, session=session_id, sequence=None, dropped_at=None).update(
            content=text
        )
    )


def order_pending(orders: dict[UUID, float]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_message m SET queue_order = o.place
            FROM unnest(%s::uuid[], %s::float8[]) AS o(id, place) WHERE m.id = o.id AND m.sequence IS NULL
            """,
            [list(orders), list(orders.values())],
        )


def accept_again(message_id: UUID, queue_order: float) -> int | None:
    """Number a pending message anew, as if it had arrived now: a stop before this does not cover it."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_message SET accept_number = nextval('copilot_accept_numbers'), queue_order = %s
            WHERE id = %s AND sequence IS NULL AND dropped_at IS NULL RETURNING accept_number
            """,
            [queue_order, message_id],
        )
        row = cursor.fetchone()
    return row[0] if row else None


def drop_pending(
    session_id: UUID, *, through: int | None = None, message_id: UUID | None = None
) -> list[Pending]:
    """Let pending messages leave the queue without a place; the rows stay for their run_ids."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_message SET dropped_at = now()
            WHERE session_id = %s AND sequence IS NULL AND dropped_at IS NULL
              AND (%s::bigint IS NULL OR accept_number <= %s) AND (%s::uuid IS NULL OR id = %s)
            RETURNING id, accept_number, queue_order, content, run_id
            """,
            [session_id, through, through, message_id, message_id],
        )
        return [Pending(*row) for row in cursor.fetchall()]


# --- rows of a running turn --------------------------------------------------------------------------


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


@dataclass(frozen=True)
class Placed:
    sequence: int
    created_at: datetime


_APPEND = """
INSERT INTO copilot_message (id, session_id, turn_id, sequence, kind, content, data, call_id, model, streaming)
SELECT r.id, t.session_id, t.id, last.sequence + r.ordinal, r.kind, r.content, r.data, r.call_id, r.model, r.streaming
FROM unnest(%s::uuid[], %s::uuid[], %s::bigint[], %s::int[], %s::text[], %s::text[], %s::jsonb[], %s::text[],
            %s::text[], %s::boolean[])
     AS r(id, turn_id, fence, ordinal, kind, content, data, call_id, model, streaming)
JOIN copilot_turn t ON t.id = r.turn_id AND t.fence = r.fence AND t.status = 'running'
CROSS JOIN LATERAL (SELECT COALESCE(MAX(m.sequence), 0) AS sequence FROM copilot_message m
                    WHERE m.session_id = t.session_id) last
FOR SHARE OF t
ON CONFLICT DO NOTHING
RETURNING id, sequence, created_at
"""


def append(rows: Sequence[NewRow]) -> dict[UUID, Placed]:
    """Store rows of any number of turns in one statement; a row missing from the answer was refused.

    Refused is a row of an older fence, and a second result for one call. The share lock makes a takeover
    wait for this statement, and this statement see a takeover that came first.
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


def save(drafts: Sequence[Draft]) -> set[UUID]:
    """Checkpoint or finish streaming rows in one statement; the rows that were still this fence's."""
    ordered = sorted(drafts, key=lambda draft: draft.row_id)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_message m SET content = d.content, streaming = d.streaming
            FROM unnest(%s::uuid[], %s::uuid[], %s::bigint[], %s::text[], %s::boolean[])
                 AS d(id, turn_id, fence, content, streaming)
            JOIN copilot_turn t ON t.id = d.turn_id AND t.fence = d.fence AND t.status = 'running'
            WHERE m.id = d.id AND m.streaming
            RETURNING m.id
            """,
            [
                [draft.row_id for draft in ordered],
                [draft.turn_id for draft in ordered],
                [draft.fence for draft in ordered],
                [draft.content for draft in ordered],
                [draft.streaming for draft in ordered],
            ],
        )
        return {row[0] for row in cursor.fetchall()}


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
        _own(turn_id, fence)
        Message.objects.filter(turn=turn_id, pk__in=row_ids).update(
            hidden=Message.Hidden.RETRACTED, streaming=False
        )


def post_notice(session_id: UUID, turn_id: UUID, code: str) -> UUID:
    """A notice for people on a turn that no worker runs any more."""
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
    session_id: UUID, turn_id: UUID, result: str, *, grow: Grow, fence: int | None = None
) -> ClosedRows:
    """What a lost run left open: streaming rows become final, calls without a result get one (A3.5)."""
    growing = {str(row.pk): row for row in Message.objects.filter(turn=turn_id, streaming=True)}
    texts = grow(str(session_id), {row_id: row.content for row_id, row in growing.items()}) if growing else {}
    with transaction.atomic():
        if fence is not None:
            _own(turn_id, fence)
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
                data=result_data(call.data["tool"], success=False, preview=result),
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


# --- reading for the model ---------------------------------------------------------------------------

_ROWS = """
SELECT id::text, sequence, kind, content, data, call_id, turn_id::text, hidden, streaming, attachments,
       server_context, replay, mid_turn, model
FROM copilot_message
WHERE session_id = %s AND hidden = ''
  AND sequence >= COALESCE((SELECT MAX(sequence) FROM copilot_message
                            WHERE session_id = %s AND kind = 'summary' AND hidden = ''), 0)
ORDER BY sequence
"""


def rows_for_model(session_id: UUID) -> list[Row]:
    """Everything since the newest valid summary, in order (A16.1)."""
    with connection.cursor() as cursor:
        cursor.execute(_ROWS, [session_id, session_id])
        return [
            Row(
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
            for row in cursor.fetchall()
        ]
