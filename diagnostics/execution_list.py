"""List executions in pages, by the same conditions that are counted, and without anything that people wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

from django.db.models import Q

from config.core.errors import InvalidRequest, NotFound, ServiceUnavailable
from config.core.staff_permissions import mask_email
from copilot.chat import turn_selectors
from copilot.realtime import session_keys
from copilot.worker import health
from copilot.worker import liveness as worker_liveness
from diagnostics import aggregates, turn_filters
from diagnostics.queries import open_snapshot
from diagnostics.turn_filters import FilterContext

MAX_COUNTED = 10_000
MAX_OFFSET = 10_000
MOST_ROWS, USUAL_ROWS = 200, 50
MAX_HOURS = 720
RECENT_WINDOWS = (timedelta(hours=1), timedelta(days=1), timedelta(days=7), timedelta(days=30))
SCHEDULE_ORIGIN = "schedule"  # the origin of scheduled runs
_ID_PREFIX_PATTERN = re.compile(r"[0-9a-f]{4,32}")

ExecutionKind = Literal["turn", "scheduled_run"]


@dataclass(frozen=True, kw_only=True)
class ExecutionFilters:
    condition: str = "all"
    status: str = ""
    kind: str = ""
    user: str = ""  # an id or an email address
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
    q: str = ""  # an id or the start of one


@dataclass(frozen=True, kw_only=True)
class PageSlice:
    limit: int = USUAL_ROWS
    offset: int = 0
    order: str = ""


@dataclass(frozen=True, kw_only=True)
class LeaseShown:
    holder: str
    ttl_ms: int | None


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One row of a list. Without an id it is a session with waiting messages in which no turn ever ran."""

    session_id: str
    user_id: int
    user_email: str
    id: str | None = None
    kind: ExecutionKind = "turn"
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
    liveness: worker_liveness.Liveness | None = None
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


# --- Filters ---


def filter_executions(filters: ExecutionFilters, moment: FilterContext) -> turn_selectors.TurnQuerySet:
    """Build the query that a page, its total, a preview and a repair share."""
    if filters.condition == "stranded_pending":
        raise InvalidRequest("Stranded messages are not executions.", code="invalid_request")
    rows = turn_selectors.all_turns().filter(_build_condition(filters, moment))
    return rows.filter(build_filter(filters))


def _build_condition(filters: ExecutionFilters, moment: FilterContext) -> Q:
    if filters.condition == "all":
        return Q()
    if filters.condition == "failed":
        return turn_filters.filter_failed_within(moment, timedelta(hours=filters.hours))
    return turn_filters.TURN_FILTERS[filters.condition](moment)


def build_filter(filters: ExecutionFilters) -> Q:
    condition = Q()
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
            condition &= Q(**{field: value})
    if filters.kind:
        scheduled = Q(origin=SCHEDULE_ORIGIN)
        condition &= scheduled if filters.kind == "scheduled_run" else ~scheduled
    return condition & _filter_owner(filters.user) & _filter_id_prefix(filters.q)


def is_user_id(text: str) -> bool:
    """Tell whether a text is a user id. Its length is checked first, so that huge numbers are never parsed."""
    return text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) < 2**31


def _filter_owner(user: str) -> Q:
    if not user:
        return Q()
    if user.isascii() and user.isdigit():
        return Q(session__owner=int(user)) if is_user_id(user) else Q(pk__in=[])
    return Q(session__owner__email__iexact=user)


def _filter_id_prefix(text: str) -> Q:
    span = _parse_id_prefix(text)
    return Q(pk__range=span) | Q(session__id__range=span) if span else Q()


def _parse_id_prefix(text: str) -> tuple[UUID, UUID] | None:
    """Return the range of ids with this prefix; refuse prefixes that would match nearly every row."""
    digits = text.strip().lower().replace("-", "")
    if not digits:
        return None
    if not _ID_PREFIX_PATTERN.fullmatch(digits):
        raise InvalidRequest("q: an id, or at least its first 4 characters.")
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


def _order_rows(
    rows: turn_selectors.TurnQuerySet, filters: ExecutionFilters, order: str
) -> turn_selectors.TurnQuerySet:
    default = "-ended_at" if filters.condition == "failed" else "-created_at"
    return rows.order_by(order or default, "pk")


def _limit_to_recent(
    rows: turn_selectors.TurnQuerySet, moment: FilterContext, count: int
) -> turn_selectors.TurnQuerySet:
    """Narrow a list to enough of the newest rows, by when they ended.

    Whatever started within a window is unfinished or has ended within it, so no index on the start is needed.
    """
    for window in RECENT_WINDOWS:
        since = moment.now - window
        within = rows.filter(turn_selectors.IS_NOT_ENDED | Q(ended_at__gte=since), created_at__gte=since)
        if within[:count].count() >= count:
            return within
    return rows


# --- Pages ---


def get_page(filters: ExecutionFilters, part: PageSlice, *, see_email: bool = False) -> Page:
    """Return a page and its total at one moment, so that they cannot disagree."""
    with open_snapshot() as now:
        moment = turn_filters.judge_running_turns(now)
        if filters.condition == "stranded_pending":
            return _get_stranded_page(filters, part, moment, see_email=see_email)
        rows = filter_executions(filters, moment)
        total = rows[: MAX_COUNTED + 1].count()
        if filters.condition == "all" and part.order in ("", "-created_at"):
            rows = _limit_to_recent(rows, moment, part.offset + part.limit)
        ordered = _order_rows(rows, filters, part.order)
        found = turn_selectors.describe_turns(ordered[part.offset : part.offset + part.limit])
        results, degraded = build_executions(found, moment, see_email=see_email)
    return Page(
        results=results,
        total=min(total, MAX_COUNTED),
        total_is_capped=total > MAX_COUNTED,
        taken_at=now,
        degraded=degraded,
    )


def get_execution(execution_id: UUID, *, see_email: bool = False) -> Execution:
    with open_snapshot() as now:
        moment = turn_filters.judge_running_turns(now, one=execution_id)
        found = turn_selectors.describe_turns(turn_selectors.all_turns().filter(pk=execution_id))
        if not found:
            raise NotFound
        results, _ = build_executions(found, moment, see_email=see_email)
    return results[0]


def build_executions(
    rows: Sequence[turn_selectors.TurnOverview], moment: FilterContext, *, see_email: bool
) -> tuple[list[Execution], tuple[str, ...]]:
    degraded: tuple[str, ...] = ()
    try:
        leases = health.get_leases([str(row.session_id) for row in rows])
    except ServiceUnavailable:
        leases, degraded = {}, ("redis",)
    beats = {view.worker: view.silent_seconds for view in health.list_workers()} if rows else {}
    seen = _RowContext(
        moment=moment, leases=leases, beats=beats, problems=_describe_problems(rows), see_email=see_email
    )
    return [_build_execution(row, seen) for row in rows], degraded


@dataclass(frozen=True, kw_only=True)
class _RowContext:
    moment: FilterContext
    leases: Mapping[str, session_keys.LeaseRecord]
    beats: Mapping[str, float]
    problems: Mapping[UUID, str]
    see_email: bool


def _build_execution(row: turn_selectors.TurnOverview, seen: _RowContext) -> Execution:
    lease = seen.leases.get(str(row.session_id))
    runs = row.status == turn_selectors.RUNNING
    liveness = seen.moment.get_liveness(row.id) if runs else None
    silent = seen.beats.get(row.worker)
    return Execution(
        id=str(row.id),
        kind="scheduled_run" if row.origin == SCHEDULE_ORIGIN else "turn",
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
        age_seconds=_seconds_between(row.created_at, row.ended_at or seen.moment.now),
        attempts=row.attempts,
        fence=row.fence,
        worker=row.worker,
        lease=LeaseShown(holder=lease.turn_id, ttl_ms=lease.ttl_ms) if lease else None,
        last_beat_seconds=round(silent, 1) if runs and silent is not None else None,
        liveness=liveness,
        evidence=seen.moment.get_evidence(row.id, row.started_at) if runs else None,
        stop_requested_at=row.stop_requested_at,
        dispatch_count=row.dispatch_count,
        failure_code=row.failure_code,
        error_message=turn_selectors.describe_failure(row.failure_code) if row.failure_code else "",
        children=row.children_count,
        problem=seen.problems.get(row.id, ""),
    )


def _seconds_between(since: datetime, until: datetime) -> float:
    return round((until - since).total_seconds(), 1)


def _describe_problems(rows: Sequence[turn_selectors.TurnOverview]) -> dict[UUID, str]:
    """Describe rows that contradict themselves, by the conditions that count them."""
    suspicious = turn_selectors.all_turns().filter(
        pk__in=[row.id for row in rows if row.status in turn_selectors.UNFINISHED or row.ended_at is None]
    )
    found: dict[UUID, str] = {}
    if any(suspicious.filter(turn_filters.filter_invalid(FilterContext(now=datetime.now(UTC))))[:1]):
        for kind, description in turn_filters.INVALID_STATES.values():
            for execution_id in suspicious.filter(kind).values_list("pk", flat=True):
                found[execution_id] = f"{found.get(execution_id, '')} {description}".strip()
    return found


# --- Stranded messages ---


SESSION_FILTERS = {"condition", "user", "session", "q"}  # filters that apply without a turn


def _get_stranded_page(
    filters: ExecutionFilters, part: PageSlice, moment: FilterContext, *, see_email: bool
) -> Page:
    """Return one row per session: its last turn, or only the session if none ever ran."""
    sessions = _filter_stranded_sessions(filters)
    wanted = sorted(sessions)[part.offset : part.offset + part.limit]
    results, degraded = _build_session_rows(wanted, moment, see_email=see_email)
    return Page(
        results=results,
        total=min(len(sessions), MAX_COUNTED),
        total_is_capped=len(sessions) > MAX_COUNTED,
        taken_at=moment.now,
        degraded=degraded,
    )


def _build_session_rows(
    wanted: Sequence[UUID], moment: FilterContext, *, see_email: bool
) -> tuple[list[Execution], tuple[str, ...]]:
    last = {
        row.session_id: row
        for row in turn_selectors.describe_turns(turn_selectors.last_turns_of_sessions(wanted))
    }
    results, degraded = build_executions(list(last.values()), moment, see_email=see_email)
    bare = turn_selectors.list_session_owners([one for one in wanted if one not in last])
    return results + [_build_bare_session(one, see_email=see_email) for one in bare], degraded


def list_session_rows(wanted: Sequence[UUID], *, see_email: bool) -> list[Execution]:
    """Return a row for each session, as in the list of stranded messages."""
    with open_snapshot() as now:
        return _build_session_rows(wanted, turn_filters.judge_running_turns(now), see_email=see_email)[0]


def _filter_stranded_sessions(filters: ExecutionFilters) -> list[UUID]:
    found, usual = aggregates.find_stranded_sessions(), ExecutionFilters()
    for name in vars(usual):
        if name not in SESSION_FILTERS and getattr(filters, name) != getattr(usual, name):
            raise InvalidRequest(f"{name}: this filter does not apply to stranded messages.")
    if filters.session:
        found = [one for one in found if one == filters.session]
    if span := _parse_id_prefix(filters.q):
        found = [one for one in found if span[0] <= one <= span[1]]
    if filters.user:
        wanted = filters.user.casefold()
        owners = turn_selectors.list_session_owners(found)
        found = [one.session_id for one in owners if wanted in (str(one.user_id), one.email.casefold())]
    return found


def _build_bare_session(session: turn_selectors.SessionOwner, *, see_email: bool) -> Execution:
    return Execution(
        session_id=str(session.session_id),
        user_id=session.user_id,
        user_email=session.email if see_email else mask_email(session.email),
    )
