"""The tab of workers: those that run turns, and whoever else must be alive (D6, D13)."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest

from copilot.errors import Unavailable
from copilot.queries import inventory as live
from diagnostics import inventory, reading
from diagnostics.broker import STEADY_QUEUES
from diagnostics.dashboard.tabs import Tab
from diagnostics.findings.rules import REAPER_SILENT_SECONDS
from diagnostics.templatetags.diagnostics import age
from diagnostics.thresholds import QUEUE_SILENT_SECONDS, SCHEDULER_SILENT_SECONDS, WATCH_SILENT_SECONDS
from diagnostics.work_ages import WorkAges, read_work_ages
from linking import queries as linking


@dataclass(frozen=True, kw_only=True)
class Other:
    name: str
    status: str  # alive, lost, unknown
    told: str


def look(request: HttpRequest, tab: Tab) -> dict[str, object]:
    waiting = linking.backlogs()
    return {
        "items": inventory.workers(),
        "others": [_reaper(), *_by_work(), *_bots()],
        "doors": linking.doors(),
        "backlogs": [
            ("Updates of chat platforms that wait", waiting.updates_waiting),
            ("Answers to chat platforms that wait", waiting.deliveries_waiting),
            ("Answers that were given up", waiting.deliveries_failed),
        ],
    }


def _reaper() -> Other:
    try:
        silent = live.reaper_silent_seconds()
    except Unavailable:
        return Other(name="Reaper", status="unknown", told="Redis does not answer, which knows")
    if silent is None:
        return Other(name="Reaper", status="lost", told="never looked since Redis began")
    status = "alive" if silent <= REAPER_SILENT_SECONDS else "lost"
    return Other(name="Reaper", status=status, told=f"looked {age(silent)} ago")


def _clock(ages: WorkAges) -> Other:
    name, silent = "Scheduler (Celery beat)", ages.scheduler_seconds
    if silent is None:
        return Other(name=name, status="unknown", told="has sent nothing since Redis began")
    status = "alive" if silent <= SCHEDULER_SILENT_SECONDS else "lost"
    return Other(name=name, status=status, told=f"sent a job {age(silent)} ago")


def _queue(queue: str, ages: WorkAges) -> Other:
    name, silent = f"Queue {queue}", ages.queue_seconds.get(queue)
    if silent is None:
        return Other(name=name, status="unknown", told="no job of it was done since Redis began")
    status = "alive" if silent <= QUEUE_SILENT_SECONDS[queue] else "lost"
    return Other(name=name, status=status, told=f"a job of it was done {age(silent)} ago")


def _watch(ages: WorkAges) -> Other:
    silent = ages.watch_seconds
    if silent is None:
        return Other(name="Watch (alerts)", status="unknown", told="has not looked since Redis began")
    status = "alive" if silent <= WATCH_SILENT_SECONDS else "lost"
    return Other(name="Watch (alerts)", status=status, told=f"looked {age(silent)} ago")


def _by_work() -> list[Other]:
    try:
        ages = read_work_ages()
    except Unavailable:
        return []  # the reaper's line says that Redis is away
    return [_clock(ages), *(_queue(queue, ages) for queue in STEADY_QUEUES), _watch(ages)]


def _bots() -> list[Other]:
    now = reading.now()
    return [
        Other(
            name=f"Bot of {runner.platform} ({runner.bot_account})",
            status="alive" if runner.until > now else "lost",
            told=f"heard {age((now - runner.last_update_at).total_seconds())} ago"
            if runner.last_update_at
            else "has heard nothing yet",
        )
        for runner in linking.runners()
    ]
