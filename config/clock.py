"""Celery beat with proof that it works: every job the broker took is noted, one still at work is not sent again (D15)."""

from __future__ import annotations

import logging
import time
from typing import Any

from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler

from config import consumer_health, timetable
from diagnostics.broker import STEADY_QUEUES

log = logging.getLogger(__name__)

NOTE_SECONDS = 1.0  # at most one note a second, however many jobs go out at once
AT_WORK_SECONDS = 5.0  # a worker notes every two seconds what it is still doing
SILENT_SECONDS = 60.0  # something is due every five


class Scheduler(DatabaseScheduler):  # type: ignore[misc]  # the library is not typed
    _noted_at = float("-inf")
    _sent_at: float | None = None

    def setup_schedule(self) -> None:
        """Jobs of older releases would be sent for ever: the database keeps what the timetable has dropped."""
        PeriodicTask.objects.filter(task__in=timetable.RETIRED).delete()
        super().setup_schedule()

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Exit if this process cannot reach a broker that answers others; its supervisor restarts it."""
        seconds: float = super().tick(*args, **kwargs)
        if self._is_silent() and consumer_health.broker_answers(self.app):
            log.critical(
                "scheduler_deaf: nothing could be sent for a minute although the broker answers; leaving"
            )
            raise SystemExit(1)
        consumer_health.touch_heartbeat_file()
        return seconds

    def _is_silent(self) -> bool:
        now = time.monotonic()
        if self._sent_at is None:
            self._sent_at = now
        return now - self._sent_at > SILENT_SECONDS

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        """Note only what the broker has taken: a clock that ticks and reaches nobody is of no use."""
        if self._is_at_work(entry.task):
            log.info("job_skipped: %s is still at work", entry.task)
            return None
        sent = super().apply_async(entry, *args, **kwargs)
        self._sent_at = time.monotonic()
        if self._sent_at - self._noted_at >= NOTE_SECONDS:
            self._noted_at = self._sent_at
            self._note_sent()
        return sent

    def _is_at_work(self, task: str) -> bool:
        from copilot import queries  # its models are there once Django is set up
        from copilot.errors import Unavailable

        name = f"job:{task}"
        try:
            return queries.inventory.work_ages([name]).get(name, AT_WORK_SECONDS) < AT_WORK_SECONDS
        except Unavailable:
            return False

    def _note_sent(self) -> None:
        from copilot import workers

        workers.note_work("scheduler")
        for queue in STEADY_QUEUES:  # whoever serves them is silent from now on, if not heard before
            workers.note_work(f"queue:{queue}", only_if_unknown=True)
