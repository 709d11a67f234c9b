"""Celery beat that records each job the broker accepted and does not send a job that is still running."""

from __future__ import annotations

import time
from typing import Any

import structlog
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler

from config import beat_schedule, consumer_health
from diagnostics.broker_queues import STEADY_QUEUES

log = structlog.get_logger(__name__)

ACTIVITY_INTERVAL_SECONDS = 20.0  # between records, however many jobs are sent
CHANGE_CHECK_SECONDS = (
    5.0  # between looks for schedules that staff changed; the library looks several times a tick
)
RUNNING_JOB_SECONDS = 5.0  # a worker reports its running jobs every two seconds
MAX_SILENT_SECONDS = 60.0  # a job is due every ten seconds


class Scheduler(DatabaseScheduler):  # type: ignore[misc]  # the library is not typed
    _activity_recorded_at = float("-inf")
    _sent_at: float | None = None
    _changes_checked_at = float("-inf")

    def setup_schedule(self) -> None:
        """Remove jobs of older releases, which the database would keep sending forever."""
        PeriodicTask.objects.filter(task__in=beat_schedule.RETIRED_TASKS).delete()
        super().setup_schedule()

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Exit if this process cannot reach a broker that answers others; its supervisor restarts it."""
        seconds: float = super().tick(*args, **kwargs)
        if self._is_silent() and consumer_health.is_broker_reachable(self.app):
            log.critical("scheduler_deaf", silent_seconds=MAX_SILENT_SECONDS)
            raise SystemExit(1)
        consumer_health.touch_heartbeat_file()
        return seconds

    def schedule_changed(self) -> bool:
        now = time.monotonic()
        if now - self._changes_checked_at < CHANGE_CHECK_SECONDS:
            return False
        self._changes_checked_at = now
        return bool(super().schedule_changed())

    def _is_silent(self) -> bool:
        now = time.monotonic()
        if self._sent_at is None:
            self._sent_at = now
        return now - self._sent_at > MAX_SILENT_SECONDS

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        """Send a job unless it is still running, and record only what the broker accepted."""
        if self._is_running(entry.task):
            log.info("job_still_running", task=entry.task)
            return None
        sent = super().apply_async(entry, *args, **kwargs)
        self._sent_at = time.monotonic()
        if self._sent_at - self._activity_recorded_at >= ACTIVITY_INTERVAL_SECONDS:
            self._activity_recorded_at = self._sent_at
            self._record_activity()
        return sent

    def _is_running(self, task: str) -> bool:
        from config.core.errors import ServiceUnavailable
        from copilot.worker import health  # its models can be imported once Django is set up

        name = f"job:{task}"
        try:
            return health.get_work_ages([name]).get(name, RUNNING_JOB_SECONDS) < RUNNING_JOB_SECONDS
        except ServiceUnavailable:
            return False

    def _record_activity(self) -> None:
        from copilot.worker import heartbeat

        heartbeat.record_work("scheduler")
        for queue in STEADY_QUEUES:  # a queue that is never served counts as silent from now on
            heartbeat.record_work(f"queue:{queue}", only_if_unknown=True)
