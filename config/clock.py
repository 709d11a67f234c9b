"""Celery beat, which shows that it lives: it touches HEARTBEAT_FILE at every tick, as workers do (D15)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django_celery_beat.schedulers import DatabaseScheduler


class Scheduler(DatabaseScheduler):  # type: ignore[misc]  # the library is not typed
    def tick(self, *args: Any, **kwargs: Any) -> float:
        if settings.HEARTBEAT_FILE:
            Path(settings.HEARTBEAT_FILE).touch()
        seconds: float = super().tick(*args, **kwargs)
        return seconds
