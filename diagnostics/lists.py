"""Executions in pages: the same conditions that are counted, narrowed by filters, without a word of what was said (D5)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

from django.db.models import Q

from config.core.staff_rights import mask_email
from copilot.errors import InvalidRequest, NotFound, Unavailable
from copilot.queries import executions, inventory
from diagnostics import conditions, counting
from diagnostics.conditions import Moment
from diagnostics.reading import one_moment

MOST_COUNTED = 10_000
MOST_OFFSET = 10_000
MOST_ROWS, USUAL_ROWS = 200, 50
MOST_HOURS = 720
WINDOWS = (timedelta(hours=1), timedelta(days=1), timedelta(days=7), timedelta(days=30))
SCHEDULED = "schedule"  # the origin of a scheduled run (D1)
_PREFIX = re.compile(r"[0-9a-f]{4,32}")

Kind = Literal["turn", "scheduled_run"]


@dataclass(frozen=True, kw_only=True)
class Filters:
    condition: str = "all"
    status: str = ""
    kind: str = ""
    user: str = ""  # an id, or an e-mail address
    session: UUID | None = None
    origin: str = ""
    worker: str = ""
    failure_code: str = ""
    created_from: datetime | None = None
    created_to: datetime | None = None
    started_from: datetime | None = None
    started_to: datetime | None = None
    ended_from: datetime | None = None
    ended_to: datetime | None = None
    hours: int = 24
    q: str = ""  # an id, or how one begins


@dataclass(frozen=True, kw_only=True)
class Slice:
    limit: int = USUAL_ROWS
    offset: int = 0
    order: str = ""


@dataclass(frozen=True, kw_only=True)
class LeaseShown:
    holder: str
    ttl_ms: int | None


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One row of a list. Without an id: a session whose messages wait, and in which no turn ever ran."""

    session_id: str
    user_id: int
    user_email: str
    id: str | None = None
    kind: Kind = "turn"
    schedule_id: str | None = None
    agent_name: str = ""
    origin: str = ""
    status: str = ""
    created_at: datetime | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    age_seconds: float = 0.0
    attempts: int = 0
    fence: int = 0
    worker: str = ""
    lease: LeaseShown | None = None
    last_beat_seconds: float | None = None
    liveness: executions.Liveness | None = None
    evidence: str | None = None
    stop_requested_at: datetime | None = None
    dispatch_count: int = 0
    failure_code: str = ""
    error_message: str = ""
    children: int = 0
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Page:
    results: list[Execution]
    total: int
    total_is_capped: bool
    taken_at: datetime
    degraded: tuple[str, ...] = ()


# --- what is asked for -------------------------------------------------------------------------------


def matching(filters: Filters, moment: Moment) -> executions.Executions:
    """The one query that a page, its total, a preview and a repair share."""
    if filters.condition == "stranded_pending":
        raise InvalidRequest("Stranded messages are no executions.", code="invalid_request")
    rows = executions.everything().filter(_condition(filters, moment))
    return rows.filter(narrowed(filters))


def _condition(filters: Filters, moment: Moment) -> Q:
    if filters.condition == "all":
        return Q()
    if filters.condition == "failed":
        return conditions.failed_within(moment, timedelta(hours=filters.hours))
    return conditions.CONDITIONS[filters.condition](moment)


def narrowed(filters: Filters) -> Q:
    wanted = Q()
    for field, value in (
        ("status", filters.status),
        ("origin", filters.origin),
        ("worker", filters.worker),
        ("failure_code", filters.failure_code),
        ("session", filters.session),
        ("created_at__gte", filters.created_from),
        ("created_at__lt", filters.created_to),
        ("started_at__gte", filters.started_from),
        ("started_at__lt", filters.started_to),
        ("ended_at__gte", filters.ended_from),
        ("ended_at__lt", filters.ended_to),
    ):
        if value not in ("", None):
            wanted &= Q(**{field: value})
    if filters.kind:
        scheduled = Q(origin=SCHEDULED)
        wanted &= scheduled if filters.kind == "scheduled_run" else ~scheduled
    return wanted & _whose(filters.user) & _identified(filters.q)


def is_id(text: str) -> bool:
    """Of a user. Its length first: a number of thousands of digits is not even read."""
    return text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) < 2**31


def _whose(user: str) -> Q:
    if not user:
        return Q()
    if user.isascii() and user.isdigit():
        return Q(session__owner=int(user)) if is_id(user) else Q(pk__in=[])
    return Q(session__owner__email__iexact=user)


def _identified(text: str) -> Q:
    """Of an execution or its session."""
    span = _span_of(text)
    return Q(pk__range=span) | Q(session__id__range=span) if span else Q()


def _span_of(text: str) -> tuple[UUID, UUID] | None:
    """The ids that begin so; what cannot begin one is no reason to look at every row."""
    digits = text.strip().lower().replace("-", "")
    if not digits:
        return None
    if not _PREFIX.fullmatch(digits):
        raise InvalidRequest("q: an id, or at least its first 4 characters.")
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


def _ordered(rows: executions.Executions, filters: Filters, order: str) -> executions.Executions:
    usual = "-ended_at" if filters.condition == "failed" else "-created_at"
    return rows.order_by(order or usual, "pk")


def _recent(rows: executions.Executions, moment: Moment, wanted: int) -> executions.Executions:
    """As many of the newest as are wanted, found by when they ended: no index on their beginnings slows every start.

    What began within a window is unfinished, or has ended within it.
    """
    for window in WINDOWS:
        since = moment.now - window
        within = rows.filter(executions.NOT_ENDED | Q(ended_at__gte=since), created_at__gte=since)
        if within[:wanted].count() >= wanted:
            return within
    return rows


# --- pages -------------------------------------------------------------------------------------------


def page(filters: Filters, part: Slice, *, see_email: bool = False) -> Page:
    """A page and its total, of one moment: they cannot disagree."""
    with one_moment() as now:
        moment = conditions.judged(now)
        if filters.condition == "stranded_pending":
            return _stranded(filters, part, moment, see_email=see_email)
        rows = matching(filters, moment)
        total = rows[: MOST_COUNTED + 1].count()
        if filters.condition == "all" and part.order in ("", "-created_at"):
            rows = _recent(rows, moment, part.offset + part.limit)
        ordered = _ordered(rows, filters, part.order)
        found = executions.described(ordered[part.offset : part.offset + part.limit])
        results, degraded = shown(found, moment, see_email=see_email)
    return Page(
        results=results,
        total=min(total, MOST_COUNTED),
        total_is_capped=total > MOST_COUNTED,
        taken_at=now,
        degraded=degraded,
    )


def one(execution_id: UUID, *, see_email: bool = False) -> Execution:
    with one_moment() as now:
        moment = conditions.judged(now, one=execution_id)
        found = executions.described(executions.everything().filter(pk=execution_id))
        if not found:
            raise NotFound
        results, _ = shown(found, moment, see_email=see_email)
    return results[0]


def shown(
    rows: Sequence[executions.Described], moment: Moment, *, see_email: bool
) -> tuple[list[Execution], tuple[str, ...]]:
    degraded: tuple[str, ...] = ()
    try:
        leases = inventory.leases_of([str(row.session_id) for row in rows])
    except Unavailable:
        leases, degraded = {}, ("redis",)
    beats = {view.worker: view.silent_seconds for view in inventory.workers_seen()} if rows else {}
    seen = _Seen(moment=moment, leases=leases, beats=beats, problems=_problems(rows), see_email=see_email)
    return [_shown(row, seen) for row in rows], degraded


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What a row is shown with."""

    moment: Moment
    leases: Mapping[str, inventory.Lease]
    beats: Mapping[str, float]
    problems: Mapping[UUID, str]
    see_email: bool


def _shown(row: executions.Described, seen: _Seen) -> Execution:
    lease = seen.leases.get(str(row.session_id))
    runs = row.status == executions.RUNNING
    liveness = seen.moment.liveness(row.id) if runs else None
    silent = seen.beats.get(row.worker)
    return Execution(
        id=str(row.id),
        kind="scheduled_run" if row.origin == SCHEDULED else "turn",
        session_id=str(row.session_id),
        schedule_id=str(row.schedule_id) if row.schedule_id else None,
        agent_name=row.agent_name,
        user_id=row.user_id,
        user_email=row.user_email if seen.see_email else mask_email(row.user_email),
        origin=row.origin,
        status=row.status,
        created_at=row.created_at,
        queued_at=row.queued_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        age_seconds=_seconds(row.created_at, row.ended_at or seen.moment.now),
        attempts=row.attempts,
        fence=row.fence,
        worker=row.worker,
        lease=LeaseShown(holder=lease.turn_id, ttl_ms=lease.ttl_ms) if lease else None,
        last_beat_seconds=round(silent, 1) if runs and silent is not None else None,
        liveness=liveness,
        evidence=seen.moment.evidence(row.id, row.started_at) if runs else None,
        stop_requested_at=row.stop_requested_at,
        dispatch_count=row.dispatch_count,
        failure_code=row.failure_code,
        error_message=executions.failure_words(row.failure_code) if row.failure_code else "",
        children=row.children_count,
        problem=seen.problems.get(row.id, ""),
    )


def _seconds(since: datetime, until: datetime) -> float:
    return round((until - since).total_seconds(), 1)


def _problems(rows: Sequence[executions.Described]) -> dict[UUID, str]:
    """In words, of rows that contradict themselves; each kind is asked for as it is counted."""
    suspicious = executions.everything().filter(
        pk__in=[row.id for row in rows if row.status in executions.UNFINISHED or row.ended_at is None]
    )
    found: dict[UUID, str] = {}
    if any(suspicious.filter(conditions.invalid(Moment(now=datetime.now(UTC))))[:1]):
        for kind, words in conditions.INVALID.values():
            for execution_id in suspicious.filter(kind).values_list("pk", flat=True):
                found[execution_id] = f"{found.get(execution_id, '')} {words}".strip()
    return found


# --- messages that wait for nothing ------------------------------------------------------------------


SESSIONS_OWN = {"condition", "user", "session", "q"}  # filters that mean something without a turn


def _stranded(filters: Filters, part: Slice, moment: Moment, *, see_email: bool) -> Page:
    """One row per session: its last turn, or only the session where none ever ran."""
    sessions = _narrowed_sessions(filters)
    wanted = sorted(sessions)[part.offset : part.offset + part.limit]
    results, degraded = _of_sessions(wanted, moment, see_email=see_email)
    return Page(
        results=results,
        total=min(len(sessions), MOST_COUNTED),
        total_is_capped=len(sessions) > MOST_COUNTED,
        taken_at=moment.now,
        degraded=degraded,
    )


def _of_sessions(
    wanted: Sequence[UUID], moment: Moment, *, see_email: bool
) -> tuple[list[Execution], tuple[str, ...]]:
    last = {row.session_id: row for row in executions.described(executions.last_of(wanted))}
    results, degraded = shown(list(last.values()), moment, see_email=see_email)
    bare = executions.owners_shown([one for one in wanted if one not in last])
    return results + [_without_turn(one, see_email=see_email) for one in bare], degraded


def of_sessions(wanted: Sequence[UUID], *, see_email: bool) -> list[Execution]:
    """A row for each, as the list of stranded messages shows them."""
    with one_moment() as now:
        return _of_sessions(wanted, conditions.judged(now), see_email=see_email)[0]


def _narrowed_sessions(filters: Filters) -> list[UUID]:
    found, usual = counting.stranded_sessions(), Filters()
    for name in vars(usual):
        if name not in SESSIONS_OWN and getattr(filters, name) != getattr(usual, name):
            raise InvalidRequest(f"{name}: not a filter of stranded messages.")
    if filters.session:
        found = [one for one in found if one == filters.session]
    if span := _span_of(filters.q):
        found = [one for one in found if span[0] <= one <= span[1]]
    if filters.user:
        wanted = filters.user.casefold()
        owners = executions.owners_shown(found)
        found = [one.session_id for one in owners if wanted in (str(one.user_id), one.email.casefold())]
    return found


def _without_turn(session: executions.SessionOwner, *, see_email: bool) -> Execution:
    return Execution(
        session_id=str(session.session_id),
        user_id=session.user_id,
        user_email=session.email if see_email else mask_email(session.email),
    )
