"""What other apps may know of a turn: whose it is, where it was asked for, how it stands, what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec
from django.db.models import Q
from django.db.models.functions import Now

from copilot import usage
from copilot.context import Arrival, ReplyAddress
from copilot.models import Approval, Message, Turn


@dataclass(frozen=True, kw_only=True)
class TurnStanding:
    turn_id: UUID
    session_id: UUID
    owner_id: int
    status: str
    origin: str
    run_ids: tuple[str, ...]
    arrival: Arrival
    created_at: datetime
    ended_at: datetime | None
    failure_code: str
    cancel_reason: str
    limit_code: str
    is_gone: bool  # with its session

    @property
    def is_over(self) -> bool:
        return self.status in Turn.ENDINGS

    @property
    def reply(self) -> ReplyAddress | None:
        return self.arrival.reply


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A message of a chat platform that no turn has taken yet."""

    message_id: UUID
    run_id: str | None
    speaker: str


def standing(turn_id: UUID) -> TurnStanding | None:
    return _standing(Q(pk=turn_id))


def standing_of_approval(approval_id: UUID) -> TurnStanding | None:
    """The turn that waits, or waited, for this decision."""
    return _standing(Q(approvals=approval_id))


def standing_of_question(question_id: UUID) -> TurnStanding | None:
    return _standing(Q(questions=question_id))


def unfinished(session_id: UUID) -> TurnStanding | None:
    """The turn that runs, waits or is about to run in a session."""
    return _standing(Q(session=session_id, status__in=Turn.UNFINISHED))


def waiting_since(*, seconds: float, within: float) -> list[UUID]:
    """Turns that have waited this long for somebody's decision, but not much longer."""
    after, now = timedelta(seconds=seconds), Now()
    asked = Approval.objects.filter(
        state=Approval.State.REQUESTED,
        turn__status=Turn.Status.WAITING,
        created_at__lte=now - after,
        created_at__gt=now - after - timedelta(seconds=within),
    )
    return list(asked.values_list("turn_id", flat=True).distinct()[:200])


# Asked several times for every message of a chat: two whole rows as objects would cost more than the question.
_AS_THEY_ARE = (
    *("session_id", "status", "origin", "created_at", "ended_at", "failure_code", "cancel_reason"),
    "limit_code",
)


def _standing(which: Q) -> TurnStanding | None:
    asked = ("pk", "run_ids", "arrival", "session__owner_id", "session__deleted_at", *_AS_THEY_ARE)
    row = Turn.objects.filter(which).values(*asked).first()
    if row is None:
        return None
    return TurnStanding(
        turn_id=row["pk"],
        owner_id=row["session__owner_id"],
        run_ids=tuple(row["run_ids"]),
        arrival=msgspec.convert(row["arrival"], Arrival),
        is_gone=row["session__deleted_at"] is not None,
        **{name: row[name] for name in _AS_THEY_ARE},
    )


def of_run(session_id: UUID, run_id: str) -> UUID | Literal["waiting", "gone"]:
    """The turn that took the message with this run_id; else whether it still waits for one."""
    row = (
        Message.objects.filter(session=session_id, run_id=run_id).values_list("turn_id", "dropped_at").first()
    )
    if row is None or row[1] is not None:
        return "gone"
    turn_id: UUID | None = row[0]
    return "waiting" if turn_id is None else turn_id


def session_of_run(session_ids: Sequence[UUID], run_id: str) -> UUID | None:
    """In which of these sessions a message with this run_id was said."""
    rows = Message.objects.filter(session__in=session_ids, run_id=run_id)
    return rows.values_list("session_id", flat=True).first()


def waiting_in(session_id: UUID) -> list[Waiting]:
    """Messages of a chat platform that wait in a session, in order."""
    rows = Message.objects.filter(session=session_id, sequence=None, dropped_at=None, data__has_key="arrival")
    return [
        Waiting(message_id=pk, run_id=run_id, speaker=arrival.reply.speaker)
        for pk, run_id, data in rows.order_by("queue_order").values_list("pk", "run_id", "data")
        if (arrival := msgspec.convert(data["arrival"], Arrival)).reply is not None
    ]


def came_with(turn_id: UUID, origin: str) -> set[str]:
    """The messages in a turn that came by this channel; others may have joined it."""
    rows = Message.objects.filter(turn=turn_id, kind=Message.Kind.USER, origin=origin)
    return {str(pk) for pk in rows.values_list("pk", flat=True)}


def answer_text(turn_id: UUID) -> str:
    """What a turn has said."""
    rows = Message.objects.filter(turn=turn_id, kind=Message.Kind.ASSISTANT, hidden="").order_by("sequence")
    return "\n\n".join(text for text in rows.values_list("content", flat=True) if text)


def cost_microdollars(turn_id: UUID) -> int:
    """As recorded so far, with that of its children (A19.1, A21.6)."""
    return usage.spending(turn_id).spent
