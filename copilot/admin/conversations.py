"""Read-only staff pages for sessions, turns, messages, model calls, questions and approvals."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Model, OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.safestring import SafeString

from config.core.admin import ReadOnlyAdmin, build_choice_filter, render_admin_link
from copilot.admin.conversation_access import ConversationAdmin
from copilot.chat.notices import NOTICES
from copilot.chat.turn_transitions import METRIC_ORIGINS
from copilot.models import Approval, Message, ModelCall, ModelEntry, Question, Session, Turn

CALL_PURPOSES = ("reply", "compaction", "title", "goal", "side")  # of model calls
COST_SOURCES = ("FLAT_RATE", "REPORTED", "CATALOGUE", "UNKNOWN")  # as billing names them


@admin.register(Session)
class SessionAdmin(ConversationAdmin):
    list_display = [
        "id",
        "owned_by",
        "state",
        "pinned",
        "archived_at",
        "deleted_at",
        "active_at",
        "created_at",
    ]
    list_select_related = ["owner"]
    found_by_id = ("id",)
    search_fields = ["=owner__username", "=owner__email"]
    search_help_text = "Exact session id, user name or email."
    ordering = ["-active_at"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        unfinished = Turn.objects.unfinished().filter(session=OuterRef("pk"))
        status = Subquery(unfinished.values("status")[:1])
        rows: QuerySet[Model] = super().get_queryset(request).annotate(turn_status=status)
        return rows

    @admin.display(description="owner", ordering="owner__username")
    def owned_by(self, session: Session) -> SafeString:
        return render_admin_link(session.owner)

    @admin.display(empty_value="idle")
    def state(self, session: Session) -> str | None:
        """Show the status of the unfinished turn."""
        status: str | None = getattr(session, "turn_status", None)
        return status


@admin.register(Turn)
class TurnAdmin(ReadOnlyAdmin):
    list_display = [
        "id",
        "owner",
        "of_session",
        "status",
        "origin",
        "model",
        "attempts",
        "queued_at",
        "ended_at",
        "failure_code",
    ]
    list_filter = [
        "status",
        build_choice_filter("origin", sorted(METRIC_ORIGINS)),
        build_choice_filter("failure_code", sorted(NOTICES)),
    ]
    list_select_related = ["session__owner"]
    found_by_id = ("id", "session")
    search_fields = ["=session__owner__username", "=session__owner__email"]
    search_help_text = "Exact turn id, session id, user name or email."
    ordering = ["-created_at"]
    exclude = ["token", "focus"]  # the lease's owner token, and what a person wrote

    @admin.display(ordering="session__owner__username")
    def owner(self, turn: Turn) -> SafeString:
        return render_admin_link(turn.session.owner)

    @admin.display(description="session")
    def of_session(self, turn: Turn) -> SafeString:
        return render_admin_link(turn, "session_id", to="copilot_session")


@admin.register(Message)
class MessageAdmin(ConversationAdmin):
    """List whose message it is and where it belongs; its text is shown only after opening the row."""

    list_display = [
        "id",
        "owner",
        "of_turn",
        "kind",
        "sequence",
        "model",
        "hidden",
        "streaming",
        "created_at",
    ]
    list_filter = ["kind", "hidden", "streaming"]
    list_select_related = ["session__owner"]
    found_by_id = ("id", "session", "turn")
    search_fields = ["=session__owner__username", "=session__owner__email"]
    search_help_text = "Exact id of the message, its session or its turn, user name or email."
    ordering = ["-created_at"]
    exclude = ["replay"]  # the provider's opaque data

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Leave long columns in the database until a single row is opened."""
        rows = super().get_queryset(request)
        return rows if _is_detail_page(request) else rows.defer("content", "data", "server_context", "replay")

    @admin.display(ordering="session__owner__username")
    def owner(self, message: Message) -> SafeString:
        return render_admin_link(message.session.owner)

    @admin.display(description="turn")
    def of_turn(self, message: Message) -> SafeString:
        return render_admin_link(message, "turn_id", to="copilot_turn")


@admin.register(ModelCall)
class ModelCallAdmin(ReadOnlyAdmin):
    list_display = [
        "id",
        "of_turn",
        "purpose",
        "provider",
        "model",
        "input_tokens",
        "output_tokens",
        "latency_ms",
        "first_token_ms",
        "cost_microdollars",
        "cost_source",
        "aborted",
        "created_at",
    ]
    list_filter = [
        build_choice_filter("provider", ModelEntry.Provider.values),
        build_choice_filter("purpose", CALL_PURPOSES),
        build_choice_filter("cost_source", COST_SOURCES),
        "aborted",
        "estimated",
    ]
    found_by_id = ("id", "turn")
    search_fields = ["=turn__session__owner__username", "=turn__session__owner__email"]
    search_help_text = "Exact id of the call or its turn, user name or email."
    ordering = ["-created_at"]

    @admin.display(description="turn")
    def of_turn(self, call: ModelCall) -> SafeString:
        return render_admin_link(call, "turn_id", to="copilot_turn")


def _is_detail_page(request: HttpRequest) -> bool:
    match = request.resolver_match
    return match is not None and "object_id" in match.kwargs


class TurnRowAdmin(ReadOnlyAdmin):
    """Rows of a turn, found by their ids and by their owner."""

    list_select_related = ["session__owner"]
    found_by_id = ("id", "session", "turn")
    search_fields = ["=session__owner__username", "=session__owner__email"]
    search_help_text = "Exact id of the row, its turn or its session, user name or email."
    ordering = ["-created_at"]

    @admin.display(description="turn")
    def of_turn(self, row: Question | Approval) -> SafeString:
        return render_admin_link(row, "turn_id", to="copilot_turn")

    @admin.display(description="owner", ordering="session__owner__username")
    def owned_by(self, row: Question | Approval) -> SafeString:
        owner: User = row.session.owner
        return render_admin_link(owner)


@admin.register(Question)
class QuestionAdmin(TurnRowAdmin):
    list_display = ["id", "owned_by", "of_turn", "outcome", "deadline", "closed_at", "created_at"]
    list_filter = ["outcome"]
    exclude = [
        "question",
        "choices",
        "answer",
    ]  # people's words are read in the transcript only, where a reason is asked


@admin.register(Approval)
class ApprovalAdmin(TurnRowAdmin):
    list_display = ["id", "owned_by", "of_turn", "tool", "state", "automatic", "created_at"]
    list_filter = ["state", "automatic"]
    exclude = ["arguments", "final_arguments"]
