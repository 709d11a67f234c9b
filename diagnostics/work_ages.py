"""Read how long ago the scheduler, the watch and the workers of each queue last worked, and define how long is too long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.db import Error, connection
from django_celery_beat.models import PeriodicTask

from copilot.worker import health
from diagnostics.broker_queues import STEADY_QUEUES
from diagnostics.queries import get_database_time

SCHEDULER_SILENT_SECONDS = 60.0  # it records what it sends every twenty seconds
WATCH_SILENT_SECONDS = 120.0  # it looks every fifteen
QUEUE_SILENT_SECONDS = {"maintenance": 90.0, "default": 900.0}  # two long exports may keep `default` busy
MAX_WAITING_TASKS = {"maintenance": 50, "default": 200, "chats": 200, "turns": 500}  # more is a backlog
WORKER_START_SECONDS = 8.0  # a worker this young need not take turns yet

ROWS_TRUSTED_AFTER_SECONDS = 240.0


@dataclass(frozen=True, kw_only=True)
class WorkAges:
    """Seconds since each kind of work was last done; None or missing if unknown."""

    scheduler_seconds: float | None = None  # since Celery beat last handed a job to the broker
    watch_seconds: float | None = None  # since figures were sampled and findings evaluated
    queue_seconds: Mapping[str, float] = field(default_factory=dict)  # since a task of the queue was done


def read_work_ages(*, rows_too: bool = True) -> WorkAges:
    """Read what Redis remembers, and the scheduler's rows if Redis forgot it; raise ServiceUnavailable without Redis."""
    ages = health.get_work_ages(["scheduler", "watch", *(f"queue:{queue}" for queue in STEADY_QUEUES)])
    queues = {queue: ages[name] for queue in STEADY_QUEUES if (name := f"queue:{queue}") in ages}
    scheduler = ages.get("scheduler")
    if scheduler is None and rows_too:
        scheduler = _read_scheduler_age()
    return WorkAges(scheduler_seconds=scheduler, watch_seconds=ages.get("watch"), queue_seconds=queues)


def _read_scheduler_age() -> float | None:
    """Read the age from beat's rows. It writes them every few minutes, so a recent value proves nothing."""
    try:
        ticked = get_last_tick_at()
        silent = (get_database_time() - ticked).total_seconds() if ticked else None
    except Error:
        connection.close()
        return None
    return silent if silent is not None and silent > ROWS_TRUSTED_AFTER_SECONDS else None


def get_last_tick_at() -> datetime | None:
    """Return when Celery beat last sent anything, as far as it has stored it."""
    sent = PeriodicTask.objects.filter(enabled=True, last_run_at__isnull=False)
    newest = sent.order_by("-last_run_at").first()
    return newest.last_run_at if newest is not None else None
