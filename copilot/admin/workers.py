"""Read-only staff page for worker heartbeats."""

from __future__ import annotations

from django.contrib import admin

from config.core.admin import ReadOnlyAdmin
from copilot.models import WorkerBeat


@admin.register(WorkerBeat)
class WorkerBeatAdmin(ReadOnlyAdmin):
    list_display = [
        "worker",
        "host",
        "pid",
        "version",
        "started_at",
        "beat_at",
        "draining",
        "running",
        "gone_at",
    ]
    list_filter = ["draining", "version"]
    search_fields = ["worker", "host"]
    ordering = ["-beat_at"]

    @admin.display(description="turns")
    def running(self, beat: WorkerBeat) -> int:
        return len(beat.turns)
