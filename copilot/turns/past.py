"""Turns that are over: of a conversation held elsewhere, written down; of one that is gone for good, removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid4

from copilot.models import Turn
from copilot.permissions import NOTHING

BATCH = 500


@dataclass(frozen=True, kw_only=True)
class PastTurn:
    """A person spoke and was answered, elsewhere (S16)."""

    id: UUID
    began_at: datetime
    ended_at: datetime


def record_past(
    session_id: UUID, turns: Sequence[PastTurn], *, origin: str, accepted: Mapping[UUID, int]
) -> None:
    """All of them ended well; none may do anything any more. `accepted` are accept numbers by turn."""
    Turn.objects.bulk_create(
        (
            Turn(
                id=turn.id,
                session_id=session_id,
                status=Turn.Status.SUCCEEDED,
                origin=origin,
                permissions=NOTHING.to_json(),
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
        batch_size=BATCH,
    )


def forget(session_ids: Sequence[UUID], limit: int) -> int:
    """Remove up to `limit` turns of these sessions with what belongs to each; answers how many there were."""
    some = list(Turn.objects.filter(session__in=session_ids).values_list("pk", flat=True)[:limit])
    Turn.objects.filter(pk__in=some).delete()
    return len(some)
