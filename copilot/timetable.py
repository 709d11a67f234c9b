"""Schedules as diagnostics sees them: which there are, what is due, and which can no longer run (D11)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Literal
from uuid import UUID

from django.db.models import Count, F, Q

from copilot import cron, presets
from copilot.errors import NotFound, Refused
from copilot.models import McpServer, Schedule, ScheduleRun

OrphanReason = Literal["deleted_agent", "no_access", "invalid_credentials", "validation_failed"]
REASONS: tuple[OrphanReason, ...] = ("deleted_agent", "no_access", "invalid_credentials", "validation_failed")
ACTIVE = Q(cancelled_at=None, next_run__isnull=False)
MOST_DETAIL = 200
MOST_OCCURRENCES = 1_440  # of one schedule, in one window
OVERDUE = timedelta(minutes=2)
FAILED = (ScheduleRun.Outcome.FAILED, ScheduleRun.Outcome.REFUSED)


@dataclass(frozen=True, kw_only=True)
class Orphan:
    reason: OrphanReason
    detail: str


@dataclass(frozen=True, kw_only=True)
class Described:
    """A schedule without what it says."""

    id: UUID
    name: str
    agent_id: UUID | None
    agent_name: str
    agent_version: int | None
    user_id: int
    user_email: str
    cron: str
    timezone: str
    next_run: datetime | None
    last_run: datetime | None
    last_state: str
    orphan: Orphan | None


@dataclass(frozen=True, kw_only=True)
class Counts:
    user: int
    paused: int
    due_now: int
    overdue: int
    failed_runs_24h: int


def counts(now: datetime) -> Counts:
    kept = Schedule.objects.filter(cancelled_at=None)
    found = kept.aggregate(
        user=Count("pk"),
        paused=Count("pk", filter=Q(next_run=None)),
        due_now=Count("pk", filter=Q(next_run__lte=now)),
        overdue=Count("pk", filter=Q(next_run__lt=now - OVERDUE)),
    )
    day = Q(created_at__gte=now - timedelta(hours=24), created_at__lt=now)
    return Counts(**found, failed_runs_24h=ScheduleRun.objects.filter(day, outcome__in=FAILED).count())


@dataclass(frozen=True)
class Coming:
    schedules: int
    runs: int


def coming(now: datetime, window: timedelta) -> Coming:
    """How many run within the window, and how often; equal lines in one zone are worked out once."""
    lines = (
        Schedule.objects.filter(ACTIVE, next_run__lt=now + window)
        .values_list("cron", "timezone")
        .annotate(number=Count("pk"))
        .order_by()
    )
    schedules = runs = 0
    for line, timezone, number in lines:
        times = _occurrences(line, timezone, now, now + window)
        schedules += number if times else 0
        runs += number * times
    return Coming(schedules, runs)


def _occurrences(line: str, timezone: str, since: datetime, until: datetime) -> int:
    try:
        read = cron.read(line, timezone)
    except Refused:
        return 0  # it can no longer run: an orphan
    due = takewhile(lambda moment: moment <= until, read.after(since))
    return sum(1 for _ in islice(due, MOST_OCCURRENCES))


# --- those that can no longer run --------------------------------------------------------------------


def orphans() -> Iterator[tuple[Schedule, Orphan]]:
    """Of those that are on: one that is off hurts nobody."""
    rows = Schedule.objects.filter(ACTIVE).select_related("owner", "agent").order_by("created_at", "pk")
    for schedule in rows.iterator(chunk_size=500):
        if (orphan := orphan_of(schedule)) is not None:
            yield schedule, orphan


def orphan_of(schedule: Schedule) -> Orphan | None:
    """The first reason that holds."""
    agent = schedule.agent
    if agent is not None and agent.deleted_at is not None:
        return _orphan("deleted_agent", f"The agent {agent.name} was deleted.")
    if not schedule.owner.is_active:
        return _orphan("no_access", "The owner's account is not active.")
    if agent is not None and agent.owner_id != schedule.owner_id:
        return _orphan("no_access", f"The agent {agent.name} is somebody else's.")
    try:
        version = presets.version(schedule.owner_id, agent.pk) if agent is not None else None
        if version is not None and (missing := _missing_server(schedule.owner_id, version.tools or [])):
            return _orphan("invalid_credentials", f"No server of the owner's offers {missing}.")
        cron.read(schedule.cron, schedule.timezone)
        if version is not None:
            presets.request(version, schedule.inputs)
    except NotFound:
        return _orphan("deleted_agent", "The agent has no such version.")
    except Refused as refusal:
        return _orphan("validation_failed", refusal.message)
    return None


def _orphan(reason: OrphanReason, detail: str) -> Orphan:
    return Orphan(reason=reason, detail=detail[:MOST_DETAIL])


def _missing_server(owner_id: int, tools: list[str]) -> str:
    """A tool of a server that was removed, or switched off with its credentials."""
    wanted = [name for name in tools if name.startswith("mcp_")]
    if not wanted:
        return ""
    servers = McpServer.objects.filter(Q(owner=owner_id) | Q(owner=None), enabled=True)
    names = [f"mcp_{name}_" for name in servers.values_list("name", flat=True)]
    return next((tool for tool in wanted if not tool.startswith(tuple(names))), "")


# --- lists -------------------------------------------------------------------------------------------


def page(*, orphaned: bool, limit: int, offset: int) -> tuple[list[Described], int]:
    """Newest first, and how many there are in all."""
    if orphaned:
        found = sorted(orphans(), key=lambda pair: (pair[0].created_at, pair[0].pk), reverse=True)
        shown, reasons = [one for one, _ in found], {one.pk: orphan for one, orphan in found}
        return described(shown[offset : offset + limit], reasons), len(found)
    rows = Schedule.objects.filter(cancelled_at=None).select_related("owner", "agent")
    ordered = rows.order_by("-created_at", "pk")[offset : offset + limit]
    return described(list(ordered), {}), rows.count()


def described(schedules: list[Schedule], orphaned: dict[UUID, Orphan]) -> list[Described]:
    runs = ScheduleRun.objects.filter(schedule__in=schedules).order_by("schedule_id", "-due_at", "-pk")
    last = {run.schedule_id: run for run in runs.distinct("schedule_id")}
    return [
        Described(
            id=one.pk,
            name=one.name,
            agent_id=one.agent_id,
            agent_name=one.agent.name if one.agent else "",
            agent_version=one.agent.version if one.agent else None,
            user_id=one.owner_id,
            user_email=one.owner.email,
            cron=one.cron,
            timezone=one.timezone,
            next_run=one.next_run,
            last_run=last[one.pk].due_at if one.pk in last else None,
            last_state=last[one.pk].outcome if one.pk in last else "",
            orphan=orphaned.get(one.pk),
        )
        for one in schedules
    ]


def found(ids: list[UUID]) -> dict[UUID, Schedule]:
    rows = Schedule.objects.filter(pk__in=ids).select_related("owner", "agent")
    return {row.pk: row for row in rows}


def still_off(ids: list[UUID], reason: str) -> list[UUID]:
    """Of those that were switched off with this reason, those that nobody has touched since."""
    rows = Schedule.objects.filter(pk__in=ids, next_run=None, disabled_reason__startswith=reason)
    return list(rows.order_by(F("created_at")).values_list("pk", flat=True))
