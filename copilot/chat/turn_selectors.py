"""Read turns and their sessions for diagnostics and recovery."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

from django.db import connection
from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from copilot.chat.notices import NOTICES
from copilot.models import Message, ScheduleRun, Session, Turn

TurnQuerySet: TypeAlias = QuerySet[Turn]

QUEUED, RUNNING, WAITING = Turn.Status.QUEUED, Turn.Status.RUNNING, Turn.Status.WAITING
SUCCEEDED, FAILED, CANCELLED = Turn.Status.SUCCEEDED, Turn.Status.FAILED, Turn.Status.CANCELLED
UNFINISHED, ENDINGS = Turn.UNFINISHED, Turn.ENDINGS

# Each of these matches a partial index, so that a count reads unfinished rows or recent endings and never all.
IS_NOT_ENDED = Q(ended_at=None)
IS_UNFINISHED = Q(status__in=[status.value for status in UNFINISHED])


def all_turns() -> TurnQuerySet:
    return Turn.objects.all()


def turns_by_id(ids: Iterable[UUID]) -> TurnQuerySet:
    return Turn.objects.filter(pk__in=list(ids))


def list_turn_states(ids: Iterable[UUID]) -> list[tuple[UUID, str, int]]:
    return list(turns_by_id(ids).values_list("pk", "status", "fence"))


def get_turn_owner_ids(ids: Iterable[UUID]) -> dict[UUID, int]:
    return dict(turns_by_id(ids).values_list("pk", "session__owner_id"))


def count_pending_messages() -> int:
    return Message.objects.queued().count()


# Used by the sweep that starts stranded messages and by the diagnostics that count them. The limit is high, because
# many sessions may wait for a usage limit, and they must not hide those that wait for nothing.
_SELECT_STRANDED_SESSIONS = """
SELECT DISTINCT m.session_id FROM copilot_message m
WHERE m.sequence IS NULL AND m.dropped_at IS NULL AND m.created_at <= now() - %(seconds)s * interval '1 second'
  AND (%(owner)s::integer IS NULL OR m.session_id IN (SELECT id FROM copilot_session WHERE owner_id = %(owner)s))
  AND NOT EXISTS (SELECT 1 FROM copilot_turn t WHERE t.session_id = m.session_id
                  AND t.status IN ('queued', 'running', 'waiting'))
  AND (m.run_id IS NOT NULL OR COALESCE(
        (SELECT t.status = 'succeeded' OR t.ended_at < m.created_at OR COALESCE(t.stop_through < m.accept_number, false)
         FROM copilot_turn t WHERE t.session_id = m.session_id ORDER BY t.created_at DESC LIMIT 1), true))
LIMIT 2000
"""


def list_stranded_sessions(*, owner_id: int | None = None, seconds: float = 0) -> list[UUID]:
    with connection.cursor() as cursor:
        cursor.execute(_SELECT_STRANDED_SESSIONS, {"owner": owner_id, "seconds": seconds})
        return [row[0] for row in cursor.fetchall()]


def get_session_owner_ids(session_ids: list[UUID]) -> dict[UUID, int]:
    return dict(Session.objects.filter(pk__in=session_ids).values_list("pk", "owner_id"))


# --- Overviews ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TurnOverview:
    """A turn without any of its texts."""

    id: UUID
    session_id: UUID
    schedule_id: UUID | None
    parent_id: UUID | None
    agent_name: str
    user_id: int
    user_email: str
    origin: str
    status: str
    created_at: datetime
    queued_at: datetime
    dispatched_at: datetime | None
    started_at: datetime | None
    attempt_started_at: datetime | None
    recovered_at: datetime | None
    ended_at: datetime | None
    attempts: int
    handovers: int
    fence: int
    worker: str
    stop_requested_at: datetime | None
    dispatch_count: int
    failure_code: str
    children_count: int


_DESCRIBED_FIELDS = (
    "id", "session_id", "parent_id", "origin", "status", "created_at", "queued_at", "dispatched_at", "started_at",
    "attempt_started_at", "recovered_at", "ended_at", "attempts", "handovers", "fence", "worker", "stop_requested_at",
    "dispatch_count", "failure_code",
)  # fmt: skip


def describe_turns(rows: TurnQuerySet) -> list[TurnOverview]:
    children = Turn.objects.filter(parent=OuterRef("pk")).order_by().values("parent")
    runs = ScheduleRun.objects.filter(turn=OuterRef("pk")).values("schedule_id")[:1]
    shown = rows.values(
        *_DESCRIBED_FIELDS,
        user_id=F("session__owner_id"),
        user_email=F("session__owner__email"),
        agent_name=Coalesce(F("session__agent_version__name"), Value("")),
        schedule_id=Subquery(runs),
        children_count=Coalesce(Subquery(children.annotate(number=Count("pk")).values("number")), 0),
    )
    return [TurnOverview(**row) for row in shown]


def describe_failure(code: str) -> str:
    notice = NOTICES.get(code)
    return f"{notice.label}. {notice.hint}" if notice else code


def list_unfinished_ids(turn_ids: Sequence[str]) -> set[str]:
    known = [turn_id for turn_id in turn_ids if _is_uuid(turn_id)]
    found = Turn.objects.unfinished().filter(pk__in=known).values_list("pk", flat=True)
    return {str(turn_id) for turn_id in found}


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def list_unfinished_descendants(turn_ids: Sequence[UUID]) -> list[UUID]:
    found: list[UUID] = []
    level = list(turn_ids)
    while level:
        children = Turn.objects.unfinished().filter(parent__in=level)
        level = [turn_id for turn_id in children.values_list("pk", flat=True) if turn_id not in found]
        found += level
    return found


# --- Sessions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SessionOwner:
    session_id: UUID
    user_id: int
    email: str


def list_session_owners(session_ids: Sequence[UUID]) -> list[SessionOwner]:
    rows = Session.objects.filter(pk__in=session_ids).values_list("pk", "owner_id", "owner__email")
    return [
        SessionOwner(session_id=session_id, user_id=user_id, email=email)
        for session_id, user_id, email in rows
    ]


def last_turns_of_sessions(session_ids: Sequence[UUID]) -> TurnQuerySet:
    newest = Turn.objects.filter(session=OuterRef("session")).order_by("-created_at", "pk").values("pk")[:1]
    return Turn.objects.filter(session__in=session_ids, pk=Subquery(newest)).order_by("session_id")


def get_oldest_pending_at() -> datetime | None:
    pending = Message.objects.queued()
    oldest = pending.order_by("created_at").first()
    return oldest.created_at if oldest is not None else None
