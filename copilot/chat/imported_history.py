"""Insert the messages and turns of an imported conversation, numbered as if they had been written here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID, uuid4

import msgspec
from django.db import connection

from config.core.json_values import JSON
from copilot.chat.permissions import NO_PERMISSIONS
from copilot.models import Message, Turn
from copilot.realtime.payloads import AttachmentPayload

MESSAGE_BATCH_SIZE = 500


@dataclass(frozen=True, kw_only=True)
class ImportedMessage:
    """A message of an imported conversation; its place in the list becomes its sequence number."""

    id: UUID
    turn_id: UUID
    kind: str
    content: str
    created_at: datetime
    data: dict[str, JSON] = field(default_factory=dict)
    call_id: str | None = None
    author: str = ""
    attachments: Sequence[AttachmentPayload] = ()
    branch: int = 0
    mid_turn: bool = False
    tier: str = ""


def insert_imported_messages(
    session_id: UUID, rows: Sequence[ImportedMessage], *, origin: str
) -> dict[UUID, int]:
    """Store the messages of a new session; return the highest accept number of each turn that has one."""
    numbers = iter(_draw_accept_numbers(sum(row.kind == "user" for row in rows)))
    accepted: dict[UUID, int] = {}
    messages: list[Message] = []
    for sequence, row in enumerate(rows, start=1):
        number = next(numbers) if row.kind == "user" else None
        if number is not None:
            accepted[row.turn_id] = number
        messages.append(
            _build_message(session_id, row, sequence, number, origin if number is not None else "")
        )
    Message.objects.bulk_create(messages, batch_size=MESSAGE_BATCH_SIZE)
    return accepted


def _draw_accept_numbers(count: int) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('copilot_accept_numbers') FROM generate_series(1, %s)", [count])
        return sorted(number for (number,) in cursor.fetchall())


def _build_message(
    session_id: UUID, row: ImportedMessage, sequence: int, number: int | None, origin: str
) -> Message:
    return Message(
        id=row.id,
        session_id=session_id,
        turn_id=row.turn_id,
        sequence=sequence,
        kind=row.kind,
        content=row.content,
        data=row.data,
        call_id=row.call_id,
        author=row.author,
        attachments=msgspec.to_builtins(list(row.attachments)),
        branch=row.branch,
        mid_turn=row.mid_turn,
        tier=row.tier,
        origin=origin,
        accept_number=number,
        created_at=row.created_at,
    )


TURN_BATCH_SIZE = 500


@dataclass(frozen=True, kw_only=True)
class ImportedTurn:
    id: UUID
    began_at: datetime
    ended_at: datetime


def insert_imported_turns(
    session_id: UUID, turns: Sequence[ImportedTurn], *, origin: str, accepted: Mapping[UUID, int]
) -> None:
    """Store the turns as succeeded and without permissions. `accepted` are accept numbers by turn."""
    Turn.objects.bulk_create(
        (
            Turn(
                id=turn.id,
                session_id=session_id,
                status=Turn.Status.SUCCEEDED,
                origin=origin,
                permissions=NO_PERMISSIONS.to_json(),
                accepted_through=accepted.get(turn.id, 0),
                fence=0,
                token=uuid4(),
                created_at=turn.began_at,
                queued_at=turn.began_at,
                started_at=turn.began_at,
                ended_at=turn.ended_at,
            )
            for turn in turns
        ),
        batch_size=TURN_BATCH_SIZE,
    )
