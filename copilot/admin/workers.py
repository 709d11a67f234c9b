"""Read-only staff page for worker heartbeats."""

from __future__ import annotations

from django.contrib import admin

from config.core.admin import ReadOnlyAdmin
from copilot.models import WorkerHeartbeat


@admin.register(WorkerHeartbeat)
class WorkerBeatAdmin(ReadOnlyAdmin):
    list_display = [
        "worker",
        "host",
        "pid",
        "version",
        "started_at",
        "last_beat_at",
        "draining",
        "running",
    ]
    list_filter = ["draining", "version"]
    search_fields = ["worker", "host"]
    ordering = ["-last_beat_at"]

    @admin.display(description="turns")
    def running(self, beat: WorkerHeartbeat) -> int:
        return len(beat.turns)
