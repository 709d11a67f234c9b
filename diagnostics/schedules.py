"""Schedules for staff: figures, due runs, and orphans."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from django_celery_beat.models import PeriodicTask

from config.core.staff_permissions import mask_email
from copilot.schedules import selectors as schedules_selectors
from diagnostics.execution_list import MAX_COUNTED
from diagnostics.queries import CachedValue, open_snapshot

HOUR, DAY = timedelta(hours=1), timedelta(hours=24)
CACHE_SECONDS = 30.0  # occurrences are computed one by one


@dataclass(frozen=True, kw_only=True)
class ScheduleSummary:
    """Figures about schedules for the API, the dashboard and the findings."""

    total: int
    user: int
    system: int
    paused: int
    due_now: int
    overdue: int
    orphaned: dict[str, int]  # by reason
    orphaned_total: int
    schedules_next_hour: int
    schedules_next_24h: int
    runs_next_hour: int
    runs_next_24h: int
    failed_runs_24h: int
    taken_at: datetime


@dataclass(frozen=True, kw_only=True)
class ScheduleShown:
    id: str
    name: str
    agent_id: str | None
    agent_name: str
    agent_version: int | None
    user_id: int
    user_email: str
    cron: str
    timezone: str
    next_run: datetime | None
    last_run: datetime | None
    last_state: str
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True, kw_only=True)
class SchedulePage:
    results: list[ScheduleShown]
    total: int
    total_is_capped: bool


def compute_schedule_summary() -> ScheduleSummary:
    with open_snapshot() as now:
        counts = schedules_selectors.count_schedules(now)
        hour, day = (
            schedules_selectors.count_upcoming_runs(now, HOUR),
            schedules_selectors.count_upcoming_runs(now, DAY),
        )
        reasons = Counter(orphan.reason for _, orphan in schedules_selectors.iter_orphans())
        system = PeriodicTask.objects.filter(enabled=True).count()
    return ScheduleSummary(
        total=counts.user + system,
        user=counts.user,
        system=system,
        paused=counts.paused,
        due_now=counts.due_now,
        overdue=counts.overdue,
        orphaned={reason: reasons[reason] for reason in schedules_selectors.ORPHAN_REASONS},
        orphaned_total=sum(reasons.values()),
        schedules_next_hour=hour.schedules,
        schedules_next_24h=day.schedules,
        runs_next_hour=hour.runs,
        runs_next_24h=day.runs,
        failed_runs_24h=counts.failed_runs_24h,
        taken_at=now,
    )


_cached_summary = CachedValue(compute_schedule_summary, CACHE_SECONDS)


def get_schedule_summary() -> ScheduleSummary:
    return _cached_summary.get()


def clear_schedule_cache() -> None:
    _cached_summary.clear()


def list_schedules(*, orphaned: bool, limit: int, offset: int, see_email: bool = False) -> SchedulePage:
    with open_snapshot():
        rows, total = schedules_selectors.get_schedule_page(orphaned=orphaned, limit=limit, offset=offset)
    return SchedulePage(
        results=[_serialize_schedule(row, see_email=see_email) for row in rows],
        total=min(total, MAX_COUNTED),
        total_is_capped=total > MAX_COUNTED,
    )


def _serialize_schedule(row: schedules_selectors.ScheduleDetails, *, see_email: bool) -> ScheduleShown:
    return ScheduleShown(
        id=str(row.id),
        name=row.name,
        agent_id=str(row.agent_id) if row.agent_id else None,
        agent_name=row.agent_name,
        agent_version=row.agent_version,
        user_id=row.user_id,
        user_email=row.user_email if see_email else mask_email(row.user_email),
        cron=row.cron,
        timezone=row.timezone,
        next_run=row.next_run,
        last_run=row.last_run,
        last_state=row.last_state,
        reason=row.orphan.reason if row.orphan else None,
        detail=row.orphan.detail if row.orphan else None,
    )
