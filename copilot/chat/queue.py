"""Read, edit, reorder, drop and consume the queued messages of a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import msgspec
from django.db import connection, transaction
from django.db.models import Max

from config.core.db import fetch_all
from config.core.json_values import JSON
from copilot.chat.messages import lock_running_turn
from copilot.chat.permissions import UNRESTRICTED, Permissions, PermissionsJSON, intersect_permissions
from copilot.models import Message

_json = msgspec.json.Encoder()


@dataclass(frozen=True)
class PendingMessage:
    """A queued message: it has no sequence number yet."""

    id: UUID
    accept_number: int
    queue_order: float
    text: str
    run_id: str | None
    permissions: PermissionsJSON | None = None
    page_url: str = ""
    file_ids: tuple[str, ...] = ()
    is_arriving: bool = False  # so new that its request may still start, queue or refuse it


_SELECT_PENDING = """
SELECT id, accept_number, queue_order, content, run_id, permissions, page_context->>'url' AS page_url,
       ARRAY(SELECT file->>'file_id' FROM jsonb_array_elements(attachments) AS file) AS file_ids,
       created_at > now() - interval '5 seconds' AS is_arriving
FROM copilot_message
WHERE session_id = %s AND sequence IS NULL AND dropped_at IS NULL
ORDER BY queue_order, accept_number
"""


class _PendingRow(NamedTuple):
    id: UUID
    accept_number: int
    queue_order: float
    content: str
    run_id: str | None
    permissions: str | None
    page_url: str | None
    file_ids: list[str]
    is_arriving: bool


def list_pending_messages(session_id: UUID | str, *, lock: bool = False) -> list[PendingMessage]:
    rows = fetch_all(_PendingRow, _SELECT_PENDING + (" FOR UPDATE" if lock else ""), [session_id])
    return [
        PendingMessage(
            id=row.id,
            accept_number=row.accept_number,
            queue_order=row.queue_order,
            text=row.content,
            run_id=row.run_id,
            permissions=msgspec.json.decode(row.permissions, type=PermissionsJSON)
            if row.permissions
            else None,
            page_url=row.page_url or "",
            file_ids=tuple(row.file_ids),
            is_arriving=row.is_arriving,
        )
        for row in rows
    ]


def get_last_pending_number(session_id: UUID) -> int | None:
    rows = Message.objects.queued().filter(session=session_id)
    return rows.aggregate(last=Max("accept_number"))["last"]  # type: ignore[no-any-return]


def list_pending_of_parent(turn_id: UUID) -> list[tuple[UUID, UUID]]:
    rows = Message.objects.queued().filter(data__parent_turn=str(turn_id))
    return list(rows.values_list("session_id", "pk"))


def has_pending_messages(session_id: UUID) -> bool:
    return Message.objects.queued().filter(session=session_id).exists()


@dataclass(frozen=True, kw_only=True)
class ConsumedMessage:
    message: PendingMessage
    follow_up: str | None = None  # how the model read it, when it came between two tool calls


@dataclass(frozen=True, kw_only=True)
class StartingMessage:
    """The message that started a turn. It left room for messages that were accepted before it."""

    message_id: UUID
    queue_order: float
    sequence: int
    sent_alone: bool = False  # a person sent this one of several queued messages ahead of the others


def get_starting_message(turn_id: UUID) -> StartingMessage:
    row = Message.objects.filter(turn=turn_id, kind="user").order_by("sequence").first()
    assert row is not None
    assert row.sequence is not None
    order = row.accept_number if row.queue_order is None else row.queue_order
    return StartingMessage(
        message_id=row.pk,
        queue_order=order or 0.0,
        sequence=row.sequence,
        sent_alone=bool(row.data.get("sent_alone")),
    )


def consume_pending_messages(
    turn_id: UUID,
    fence: int,
    choose: Callable[[list[PendingMessage]], list[ConsumedMessage]],
    *,
    start: StartingMessage | None = None,
) -> list[ConsumedMessage]:
    with transaction.atomic():
        session_id, stopped = lock_running_turn(turn_id, fence)
        chosen = [] if stopped else choose(list_pending_messages(session_id, lock=True))
        if chosen:
            _place_messages(
                turn_id, chosen, _choose_sequences(session_id, chosen, start), mid_turn=start is None
            )
    return chosen


def _place_messages(
    turn_id: UUID, chosen: list[ConsumedMessage], sequences: dict[UUID, int], *, mid_turn: bool
) -> None:
    data: list[dict[str, JSON]] = [
        {} if consumed.follow_up is None else {"follow_up": consumed.follow_up} for consumed in chosen
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_message m SET sequence = p.sequence, turn_id = %s, mid_turn = %s, data = m.data || p.data
            FROM unnest(%s::uuid[], %s::bigint[], %s::jsonb[]) AS p(id, sequence, data) WHERE m.id = p.id
            """,
            [
                turn_id,
                mid_turn,
                [consumed.message.id for consumed in chosen],
                [sequences[consumed.message.id] for consumed in chosen],
                [_json.encode(value).decode() for value in data],
            ],
        )
        cursor.execute(
            """
            UPDATE copilot_turn SET run_ids = run_ids || %s::jsonb,
                   accepted_through = GREATEST(accepted_through, %s) WHERE id = %s
            """,
            [
                _json.encode([each.message.run_id for each in chosen if each.message.run_id]).decode(),
                max(consumed.message.accept_number for consumed in chosen),
                turn_id,
            ],
        )


def _choose_sequences(
    session_id: UUID, chosen: list[ConsumedMessage], start: StartingMessage | None
) -> dict[UUID, int]:
    last = Message.objects.filter(session=session_id).aggregate(last=Max("sequence"))["last"] or 0
    messages = [consumed.message for consumed in chosen]
    earlier = [
        message for message in messages if start is not None and message.queue_order < start.queue_order
    ]
    sequences = _choose_sequences_before(session_id, earlier, start) if start is not None and earlier else {}
    later = [message for message in messages if message.id not in sequences]
    return sequences | {message.id: last + 1 + index for index, message in enumerate(later)}


_SELECT_UNANSWERED = """
SELECT m.sequence, COALESCE(m.queue_order, m.accept_number) AS queue_order,
       m.sequence - COALESCE(before.sequence, 0) - 1 AS free_places
FROM copilot_message m CROSS JOIN LATERAL (
    SELECT MAX(b.sequence) AS sequence FROM copilot_message b
    WHERE b.session_id = m.session_id AND b.sequence < m.sequence) before
WHERE m.session_id = %(session)s AND m.kind = 'user' AND m.hidden = '' AND m.sequence > COALESCE((
    SELECT MAX(a.sequence) FROM copilot_message a
    WHERE a.session_id = %(session)s AND a.kind NOT IN ('user', 'notice') AND a.hidden = ''), 0)
ORDER BY m.sequence
"""


class _UnansweredRow(NamedTuple):
    sequence: int
    queue_order: float
    free_places: int


def _choose_sequences_before(
    session_id: UUID, earlier: list[PendingMessage], start: StartingMessage
) -> dict[UUID, int]:
    """Place messages before the first unanswered message that was accepted after them.

    That is the starting message, or an earlier one whose turn was stopped before it began. Each left room.
    """
    unanswered = fetch_all(_UnansweredRow, _SELECT_UNANSWERED, {"session": session_id})
    groups: dict[int, list[PendingMessage]] = {start.sequence: []}
    for message in earlier:
        later = (
            row.sequence
            for row in unanswered
            if row.queue_order > message.queue_order and len(groups.get(row.sequence, ())) < row.free_places
        )
        groups.setdefault(next(later, start.sequence), []).append(message)
    return {
        message.id: sequence - len(group) + index
        for sequence, group in groups.items()
        for index, message in enumerate(group)
    }


def edit_pending_message(session_id: UUID, message_id: UUID, text: str, permissions: Permissions) -> bool:
    rows = Message.objects.queued().filter(pk=message_id, session=session_id)
    if permissions == UNRESTRICTED:
        return bool(rows.update(content=text))
    with transaction.atomic():
        row = rows.select_for_update().only("permissions").first()
        if row is None:
            return False
        narrowed = intersect_permissions(Permissions.from_json(row.permissions), permissions)
        return bool(rows.update(content=text, permissions=narrowed.to_json()))


def reorder_pending_messages(orders: dict[UUID, float]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_message m SET queue_order = o.place
            FROM unnest(%s::uuid[], %s::float8[]) AS o(id, place) WHERE m.id = o.id AND m.sequence IS NULL
            """,
            [list(orders), list(orders.values())],
        )


def send_pending_message_alone(message_id: UUID, queue_order: float) -> int | None:
    """Number a pending message as if it had arrived now, so that an earlier stop does not cover it.

    The turn that it starts leaves the other queued messages where they are.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE copilot_message SET accept_number = nextval('copilot_accept_numbers'), queue_order = %s,
                   data = data || '{"sent_alone": true}'
            WHERE id = %s AND sequence IS NULL AND dropped_at IS NULL RETURNING accept_number
            """,
            [queue_order, message_id],
        )
        row = cursor.fetchone()
    return row[0] if row else None


class DroppedMessage(NamedTuple):
    id: UUID
    accept_number: int
    run_id: str | None


def drop_pending_messages(
    session_id: UUID, *, through: int | None = None, message_id: UUID | None = None
) -> list[DroppedMessage]:
    return fetch_all(
        DroppedMessage,
        """
        UPDATE copilot_message SET dropped_at = now()
        WHERE session_id = %s AND sequence IS NULL AND dropped_at IS NULL
          AND (%s::bigint IS NULL OR accept_number <= %s) AND (%s::uuid IS NULL OR id = %s)
        RETURNING id, accept_number, run_id
        """,
        [session_id, through, through, message_id, message_id],
    )
