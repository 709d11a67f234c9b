"""Rows of a conversation that was held elsewhere: they get places and numbers as if they had been said here (S16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import msgspec
from django.db import connection

from copilot.events import JSON, AttachmentView
from copilot.models import Message

BATCH = 500


@dataclass(frozen=True, kw_only=True)
class PastRow:
    """A row as it was; it comes to stand where it stands in the list."""

    id: UUID
    turn_id: UUID
    kind: str
    content: str
    created_at: datetime
    data: dict[str, JSON] = field(default_factory=dict)
    call_id: str | None = None
    author: str = ""
    attachments: Sequence[AttachmentView] = ()
    branch: int = 0
    mid_turn: bool = False
    tier: str = ""


def bring_in(session_id: UUID, rows: Sequence[PastRow], *, origin: str) -> dict[UUID, int]:
    """Store the rows of a new session; answers the highest accept number of each turn that has one."""
    numbers = iter(_accept_numbers(sum(row.kind == "user" for row in rows)))
    accepted: dict[UUID, int] = {}
    made: list[Message] = []
    for sequence, row in enumerate(rows, start=1):
        number = next(numbers) if row.kind == "user" else None
        if number is not None:
            accepted[row.turn_id] = number
        made.append(_message(session_id, row, sequence, number, origin if number is not None else ""))
    Message.objects.bulk_create(made, batch_size=BATCH)
    return accepted


def _accept_numbers(count: int) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('copilot_accept_numbers') FROM generate_series(1, %s)", [count])
        return sorted(number for (number,) in cursor.fetchall())


def _message(session_id: UUID, row: PastRow, sequence: int, number: int | None, origin: str) -> Message:
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
