"""The tab of workers: those that run turns, and whoever else must be alive (D6, D13)."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest

from copilot.errors import Unavailable
from copilot.queries import inventory as live
from diagnostics import inventory, reading
from diagnostics.dashboard.tabs import Tab
from diagnostics.findings.rules import REAPER_SILENT_SECONDS, SCHEDULER_SILENT_SECONDS
from diagnostics.templatetags.diagnostics import age
from diagnostics.ticks import last_tick_at
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
        "others": [_reaper(), _clock(), *_bots()],
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


def _clock() -> Other:
    ticked = last_tick_at()
    if ticked is None:
        return Other(name="Scheduler (Celery beat)", status="unknown", told="has written nothing down yet")
    silent = (reading.now() - ticked).total_seconds()
    status = "alive" if silent <= SCHEDULER_SILENT_SECONDS else "lost"
    told = f"wrote {age(silent)} ago that it ticks; it does so once a minute"
    return Other(name="Scheduler (Celery beat)", status=status, told=told)


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
