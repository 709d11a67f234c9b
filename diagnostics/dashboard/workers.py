"""Dashboard tab of workers and other processes that must be alive."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest

from config.core.errors import ServiceUnavailable
from copilot.worker import health
from diagnostics import inventory, queries
from diagnostics.broker_queues import STEADY_QUEUES
from diagnostics.dashboard.tabs import Tab
from diagnostics.findings.rules import REAPER_SILENT_SECONDS
from diagnostics.templatetags.diagnostics import age
from diagnostics.work_ages import (
    QUEUE_SILENT_SECONDS,
    SCHEDULER_SILENT_SECONDS,
    WATCH_SILENT_SECONDS,
    WorkAges,
    read_work_ages,
)
from linking import selectors


@dataclass(frozen=True, kw_only=True)
class ProcessStatus:
    name: str
    status: str  # alive, lost, unknown
    told: str


def build_workers_context(request: HttpRequest, tab: Tab) -> dict[str, object]:
    waiting = selectors.get_backlogs()
    return {
        "items": inventory.list_workers(),
        "others": [_get_reaper_status(), *_list_work_statuses(), *_list_bot_statuses()],
        "doors": selectors.list_traffic_facts(),
        "backlogs": [
            ("Chat-platform updates waiting", waiting.updates_waiting),
            ("Answers to chat platforms waiting", waiting.deliveries_waiting),
            ("Answers that could not be delivered", waiting.deliveries_failed),
        ],
    }


def _get_reaper_status() -> ProcessStatus:
    try:
        silent = health.get_sweep_age_seconds()
    except ServiceUnavailable:
        return ProcessStatus(name="Reaper", status="unknown", told="unknown: Redis is not answering")
    if silent is None:
        return ProcessStatus(name="Reaper", status="lost", told="has not swept since Redis started")
    status = "alive" if silent <= REAPER_SILENT_SECONDS else "lost"
    return ProcessStatus(name="Reaper", status=status, told=f"swept {age(silent)} ago")


def _get_scheduler_status(ages: WorkAges) -> ProcessStatus:
    name, silent = "Scheduler (Celery beat)", ages.scheduler_seconds
    if silent is None:
        return ProcessStatus(name=name, status="unknown", told="has sent nothing since Redis started")
    status = "alive" if silent <= SCHEDULER_SILENT_SECONDS else "lost"
    return ProcessStatus(name=name, status=status, told=f"sent a job {age(silent)} ago")


def _get_queue_status(queue: str, ages: WorkAges) -> ProcessStatus:
    name, silent = f"Queue {queue}", ages.queue_seconds.get(queue)
    if silent is None:
        return ProcessStatus(name=name, status="unknown", told="no job finished since Redis started")
    status = "alive" if silent <= QUEUE_SILENT_SECONDS[queue] else "lost"
    return ProcessStatus(name=name, status=status, told=f"a job finished {age(silent)} ago")


def _get_watch_status(ages: WorkAges) -> ProcessStatus:
    silent = ages.watch_seconds
    if silent is None:
        return ProcessStatus(name="Watch (alerts)", status="unknown", told="has not run since Redis started")
    status = "alive" if silent <= WATCH_SILENT_SECONDS else "lost"
    return ProcessStatus(name="Watch (alerts)", status=status, told=f"ran {age(silent)} ago")


def _list_work_statuses() -> list[ProcessStatus]:
    try:
        ages = read_work_ages()
    except ServiceUnavailable:
        return []  # the reaper's status already says that Redis is away
    return [
        _get_scheduler_status(ages),
        *(_get_queue_status(queue, ages) for queue in STEADY_QUEUES),
        _get_watch_status(ages),
    ]


def _list_bot_statuses() -> list[ProcessStatus]:
    now = queries.get_database_time()
    return [
        ProcessStatus(
            name=f"Bot of {runner.platform} ({runner.bot_account})",
            status="alive" if runner.until > now else "lost",
            told=f"received an update {age((now - runner.last_update_at).total_seconds())} ago"
            if runner.last_update_at
            else "has received nothing yet",
        )
        for runner in selectors.list_runners()
    ]
