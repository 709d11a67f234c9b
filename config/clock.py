"""Celery beat with proof that it works: every job it has sent is noted in Redis, and HEARTBEAT_FILE is touched (D15)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler

from config import timetable
from diagnostics.broker import STEADY_QUEUES

NOTE_SECONDS = 1.0  # at most one note a second, however many jobs go out at once


class Scheduler(DatabaseScheduler):  # type: ignore[misc]  # the library is not typed
    _noted_at = float("-inf")

    def setup_schedule(self) -> None:
        """Jobs of older releases would be sent for ever: the database keeps what the timetable has dropped."""
        PeriodicTask.objects.filter(task__in=timetable.RETIRED).delete()
        super().setup_schedule()

    def tick(self, *args: Any, **kwargs: Any) -> float:
        seconds: float = super().tick(*args, **kwargs)
        if settings.HEARTBEAT_FILE:
            Path(settings.HEARTBEAT_FILE).touch()
        return seconds

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        """Note only what the broker has taken: a clock that ticks and reaches nobody is of no use."""
        sent = super().apply_async(*args, **kwargs)
        if time.monotonic() - self._noted_at >= NOTE_SECONDS:
            self._noted_at = time.monotonic()
            self._note_sent()
        return sent

    def _note_sent(self) -> None:
        from copilot import workers  # its models are there once Django is set up

        workers.note_work("scheduler")
        for queue in STEADY_QUEUES:  # whoever serves them is silent from now on, if not heard before
            workers.note_work(f"queue:{queue}", only_if_unknown=True)
