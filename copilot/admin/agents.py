"""Staff pages for personalities, and read-only pages for agents, schedules and workers."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Count, Model, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from config.core.admin import LatestRowsInline, ReadOnlyAdmin, TypedModelAdmin, render_admin_link
from copilot.models import Agent, Personality, Schedule, ScheduleRun, WorkerHeartbeat


@admin.register(Personality)
class PersonalityAdmin(TypedModelAdmin):
    # A personality that is switched off no longer applies, starting with the next turn.
    list_display = ["name", "tone", "style", "enabled"]
    list_filter = ["enabled"]
    search_fields = ["name"]


@admin.register(Agent)
class AgentAdmin(ReadOnlyAdmin):
    list_display = ["id", "name", "owned_by", "version", "scheduled", "changed_at", "deleted_at"]
    list_select_related = ["owner"]
    found_by_id = ("id",)
    search_fields = ["name", "=owner__username", "=owner__email"]
    search_help_text = "Agent id or name, or the exact user name or email of its owner."
    ordering = ["-changed_at"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        rows: QuerySet[Model] = super().get_queryset(request).annotate(schedule_count=Count("schedules"))
        return rows

    @admin.display(description="owner", ordering="owner__username")
    def owned_by(self, agent: Agent) -> SafeString:
        return render_admin_link(agent.owner)

    @admin.display(description="schedules")
    def scheduled(self, agent: Agent) -> int:
        count: int = getattr(agent, "schedule_count", 0)
        return count


class ScheduleRunInline(LatestRowsInline):
    model = ScheduleRun
    readonly_fields = ["due_at", "outcome", "reason", "turn"]
    fields = [*readonly_fields]
    ordering = ["-due_at"]
    max_rows = 20


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    list_display = [
        "id",
        "name",
        "owned_by",
        "cron",
        "timezone",
        "next_run",
        "failures",
        "disabled_reason",
        "cancelled_at",
    ]
    list_filter = [("disabled_reason", admin.EmptyFieldListFilter)]
    list_select_related = ["owner"]
    found_by_id = ("id", "session", "agent")
    search_fields = ["name", "=owner__username", "=owner__email"]
    search_help_text = (
        "Id of the schedule, its session or agent, its name, or its owner's user name or email."
    )
    ordering = ["next_run"]
    exclude = ["prompt", "inputs"]  # what people wrote is private
    inlines = [ScheduleRunInline]

    @admin.display(description="owner", ordering="owner__username")
    def owned_by(self, schedule: Schedule) -> SafeString:
        return render_admin_link(schedule.owner)


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
