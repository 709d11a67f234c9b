"""Staff pages of what people had made and were asked: saved agents, schedules, questions and approvals. All only looked at."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Count, Model, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from billing.staff_pages import ViewOnly
from copilot.models import Agent, Approval, Question, Schedule, ScheduleRun
from copilot.staff_pages import Looked, linked


@admin.register(Agent)
class AgentAdmin(ViewOnly):
    list_display = ["id", "name", "owned_by", "version", "scheduled", "changed_at", "deleted_at"]
    list_select_related = ["owner"]
    found_by_id = ("id",)
    search_fields = ["name", "=owner__username", "=owner__email"]
    search_help_text = "Agent id, its name, or the user name or e-mail of its owner, in full."
    ordering = ["-changed_at"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        rows: QuerySet[Model] = super().get_queryset(request).annotate(schedule_count=Count("schedules"))
        return rows

    @admin.display(description="owner", ordering="owner__username")
    def owned_by(self, agent: Agent) -> SafeString:
        return linked(agent.owner)

    @admin.display(description="schedules")
    def scheduled(self, agent: Agent) -> int:
        count: int = getattr(agent, "schedule_count", 0)
        return count


class RunsSeen(Looked):
    """The latest of them."""

    model = ScheduleRun
    readonly_fields = ["due_at", "outcome", "reason", "turn"]
    fields = [*readonly_fields]
    ordering = ["-due_at"]
    max_rows = 20


@admin.register(Schedule)
class ScheduleAdmin(ViewOnly):
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
        "Id of the schedule, its session or agent, its name, or its owner's user name or e-mail."
    )
    ordering = ["next_run"]
    exclude = ["prompt", "inputs"]  # what people wrote is theirs
    inlines = [RunsSeen]

    @admin.display(description="owner", ordering="owner__username")
    def owned_by(self, schedule: Schedule) -> SafeString:
        return linked(schedule.owner)


class OfATurn(ViewOnly):
    """Rows of a turn's session, found by its ids and by whose they are."""

    list_select_related = ["session__owner"]
    found_by_id = ("id", "session", "turn")
    search_fields = ["=session__owner__username", "=session__owner__email"]
    search_help_text = "Its own id, that of its turn or session, user name or e-mail, in full."
    ordering = ["-created_at"]

    @admin.display(description="turn")
    def of_turn(self, row: Question | Approval) -> SafeString:
        return linked(row, "turn_id", to="copilot_turn")

    @admin.display(description="owner", ordering="session__owner__username")
    def owned_by(self, row: Question | Approval) -> SafeString:
        owner: User = row.session.owner
        return linked(owner)


@admin.register(Question)
class QuestionAdmin(OfATurn):
    list_display = ["id", "owned_by", "of_turn", "outcome", "deadline", "closed_at", "created_at"]
    list_filter = ["outcome"]
    exclude = ["question", "choices", "answer"]  # what was said is read in the transcript, not here


@admin.register(Approval)
class ApprovalAdmin(OfATurn):
    list_display = ["id", "owned_by", "of_turn", "tool", "state", "automatic", "created_at"]
    list_filter = ["state", "automatic"]
    exclude = ["arguments", "final_arguments"]
