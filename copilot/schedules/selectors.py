"""Read schedules for diagnostics: counts, upcoming runs, and those that can no longer run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Literal
from uuid import UUID

from django.db.models import Count, F, Q

from config.core.errors import RequestRefused
from copilot.agents import services as agents
from copilot.models import AgentVersion, McpServer, Schedule, ScheduleRun
from copilot.schedules import cron

OrphanReason = Literal["deleted_agent", "no_access", "invalid_credentials", "validation_failed"]
ORPHAN_REASONS: tuple[OrphanReason, ...] = (
    "deleted_agent",
    "no_access",
    "invalid_credentials",
    "validation_failed",
)
ACTIVE_SCHEDULES = Q(cancelled_at=None, next_run__isnull=False)
MAX_DETAIL_CHARACTERS = 200
MAX_OCCURRENCES = 1_440  # of one schedule, in one window
ORPHAN_BATCH_SIZE = 500
OVERDUE_AFTER = timedelta(minutes=2)
FAILED_OUTCOMES = (ScheduleRun.Outcome.FAILED, ScheduleRun.Outcome.REFUSED)


@dataclass(frozen=True, kw_only=True)
class ScheduleOrphan:
    reason: OrphanReason
    detail: str


@dataclass(frozen=True, kw_only=True)
class ScheduleDetails:
    """A schedule without its prompt."""

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
    orphan: ScheduleOrphan | None


@dataclass(frozen=True, kw_only=True)
class ScheduleCounts:
    user: int
    paused: int
    due_now: int
    overdue: int
    failed_runs_24h: int


def count_schedules(now: datetime) -> ScheduleCounts:
    kept = Schedule.objects.filter(cancelled_at=None)
    found = kept.aggregate(
        user=Count("pk"),
        paused=Count("pk", filter=Q(next_run=None)),
        due_now=Count("pk", filter=Q(next_run__lte=now)),
        overdue=Count("pk", filter=Q(next_run__lt=now - OVERDUE_AFTER)),
    )
    day = Q(created_at__gte=now - timedelta(hours=24), created_at__lt=now)
    return ScheduleCounts(
        **found, failed_runs_24h=ScheduleRun.objects.filter(day, outcome__in=FAILED_OUTCOMES).count()
    )


@dataclass(frozen=True)
class UpcomingRuns:
    schedules: int
    runs: int


def count_upcoming_runs(now: datetime, window: timedelta) -> UpcomingRuns:
    """Count schedules and runs within the window. Equal expressions in one zone are computed once."""
    lines = (
        Schedule.objects.filter(ACTIVE_SCHEDULES, next_run__lt=now + window)
        .values_list("cron", "timezone")
        .annotate(number=Count("pk"))
        .order_by()
    )
    schedules = runs = 0
    for line, timezone, number in lines:
        times = _count_occurrences(line, timezone, now, now + window)
        schedules += number if times else 0
        runs += number * times
    return UpcomingRuns(schedules, runs)


def _count_occurrences(line: str, timezone: str, since: datetime, until: datetime) -> int:
    try:
        expression = cron.parse_cron(line, timezone)
    except RequestRefused:
        return 0  # it can no longer run: an orphan
    due = takewhile(lambda moment: moment <= until, expression.iter_after(since))
    return sum(1 for _ in islice(due, MAX_OCCURRENCES))


# --- Orphans -----------------------------------------------------------------------------------------


def iter_orphans() -> Iterator[tuple[Schedule, ScheduleOrphan]]:
    rows = (
        Schedule.objects.filter(ACTIVE_SCHEDULES)
        .select_related("owner", "agent")
        .order_by("created_at", "pk")
        .iterator(chunk_size=ORPHAN_BATCH_SIZE)
    )
    while batch := list(islice(rows, ORPHAN_BATCH_SIZE)):
        versions = _get_current_versions(batch)
        for schedule in batch:
            if (orphan := _judge_schedule(schedule, versions)) is not None:
                yield schedule, orphan


def find_orphan(schedule: Schedule) -> ScheduleOrphan | None:
    return _judge_schedule(schedule, _get_current_versions([schedule]))


def _get_current_versions(schedules: Sequence[Schedule]) -> dict[UUID, AgentVersion]:
    """Return the current version of the schedules' agents, by agent."""
    agent_ids = {schedule.agent_id for schedule in schedules if schedule.agent_id is not None}
    rows = AgentVersion.objects.filter(agent__in=agent_ids, number=F("agent__version"))
    return {version.agent_id: version for version in rows} if agent_ids else {}


def _judge_schedule(schedule: Schedule, versions: Mapping[UUID, AgentVersion]) -> ScheduleOrphan | None:
    agent = schedule.agent
    if agent is not None and agent.deleted_at is not None:
        return _make_orphan("deleted_agent", f"The agent {agent.name} was deleted.")
    if not schedule.owner.is_active:
        return _make_orphan("no_access", "The owner's account is not active.")
    if agent is not None and agent.owner_id != schedule.owner_id:
        return _make_orphan("no_access", f"The agent {agent.name} belongs to somebody else.")
    version = versions.get(agent.pk) if agent is not None else None
    if agent is not None and version is None:
        return _make_orphan("deleted_agent", "The agent has no such version.")
    if version is not None and (missing := _missing_server(schedule.owner_id, version.tools or [])):
        return _make_orphan("invalid_credentials", f"None of the owner's MCP servers offers {missing}.")
    try:
        cron.parse_cron(schedule.cron, schedule.timezone)
        if version is not None:
            agents.build_run_prompt(version, schedule.inputs)
    except RequestRefused as refusal:
        return _make_orphan("validation_failed", refusal.message)
    return None


def _make_orphan(reason: OrphanReason, detail: str) -> ScheduleOrphan:
    return ScheduleOrphan(reason=reason, detail=detail[:MAX_DETAIL_CHARACTERS])


def _missing_server(owner_id: int, tools: list[str]) -> str:
    wanted = [name for name in tools if name.startswith("mcp_")]
    if not wanted:
        return ""
    servers = McpServer.objects.filter(Q(owner=owner_id) | Q(owner=None), enabled=True)
    names = [f"mcp_{name}_" for name in servers.values_list("name", flat=True)]
    return next((tool for tool in wanted if not tool.startswith(tuple(names))), "")


# --- Lists -------------------------------------------------------------------------------------------


def get_schedule_page(*, orphaned: bool, limit: int, offset: int) -> tuple[list[ScheduleDetails], int]:
    if orphaned:
        found = sorted(iter_orphans(), key=lambda pair: (pair[0].created_at, pair[0].pk), reverse=True)
        shown = [schedule for schedule, _ in found]
        reasons = {schedule.pk: orphan for schedule, orphan in found}
        return describe_schedules(shown[offset : offset + limit], reasons), len(found)
    rows = Schedule.objects.filter(cancelled_at=None).select_related("owner", "agent")
    ordered = rows.order_by("-created_at", "pk")[offset : offset + limit]
    return describe_schedules(list(ordered), {}), rows.count()


def describe_schedules(
    schedules: list[Schedule], orphaned: dict[UUID, ScheduleOrphan]
) -> list[ScheduleDetails]:
    runs = ScheduleRun.objects.filter(schedule__in=schedules).order_by("schedule_id", "-due_at", "-pk")
    last = {run.schedule_id: run for run in runs.distinct("schedule_id")}
    return [
        ScheduleDetails(
            id=schedule.pk,
            name=schedule.name,
            agent_id=schedule.agent_id,
            agent_name=schedule.agent.name if schedule.agent else "",
            agent_version=schedule.agent.version if schedule.agent else None,
            user_id=schedule.owner_id,
            user_email=schedule.owner.email,
            cron=schedule.cron,
            timezone=schedule.timezone,
            next_run=schedule.next_run,
            last_run=last[schedule.pk].due_at if schedule.pk in last else None,
            last_state=last[schedule.pk].outcome if schedule.pk in last else "",
            orphan=orphaned.get(schedule.pk),
        )
        for schedule in schedules
    ]


def get_schedules_by_id(ids: list[UUID]) -> dict[UUID, Schedule]:
    rows = Schedule.objects.filter(pk__in=ids).select_related("owner", "agent")
    return {row.pk: row for row in rows}


def list_still_disabled(ids: list[UUID], reason: str) -> list[UUID]:
    rows = Schedule.objects.filter(pk__in=ids, next_run=None, disabled_reason__startswith=reason)
    return list(rows.order_by(F("created_at")).values_list("pk", flat=True))
