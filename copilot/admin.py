"""Staff pages of conversations: everything is looked at, little is changed: personalities, and an API key that must go."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Model, OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import SafeString

from billing.staff_pages import AnyAdmin, ViewOnly, one_of
from copilot import api_keys
from copilot import catalogue_admin as catalogue_admin  # registers itself
from copilot import mcp_admin as mcp_admin  # registers itself
from copilot import sign_in_admin as sign_in_admin  # registers itself
from copilot import work_admin as work_admin  # registers itself
from copilot.accounts.conversation_access import ConversationAdmin
from copilot.errors import NotFound
from copilot.models import (
    ApiKey,
    ErasureJob,
    ExportJob,
    Message,
    ModelCall,
    ModelEntry,
    Personality,
    Session,
    Share,
    Turn,
    WorkerBeat,
    WorkspaceFile,
)
from copilot.notices import NOTICES
from copilot.staff_pages import linked
from copilot.turns.ending import ORIGINS
from copilot.workspace import shares

PURPOSES = ("reply", "compaction", "title", "goal", "side")  # of model calls (A19.6)
COST_SOURCES = ("FLAT_RATE", "REPORTED", "CATALOGUE", "UNKNOWN")  # billing's


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
    search_help_text = "Session id, user name or e-mail, in full."
    ordering = ["-active_at"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        unfinished = Turn.objects.filter(session=OuterRef("pk"), status__in=Turn.UNFINISHED)
        now = Subquery(unfinished.values("status")[:1])
        rows: QuerySet[Model] = super().get_queryset(request).annotate(turn_now=now)
        return rows

    @admin.display(description="owner", ordering="owner__username")
    def owned_by(self, session: Session) -> SafeString:
        return linked(session.owner)

    @admin.display(empty_value="idle")
    def state(self, session: Session) -> str | None:
        """Of its unfinished turn."""
        status: str | None = getattr(session, "turn_now", None)
        return status


@admin.register(Turn)
class TurnAdmin(ViewOnly):
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
        one_of("origin", sorted(ORIGINS)),
        one_of("failure_code", sorted(NOTICES)),
    ]
    list_select_related = ["session__owner"]
    found_by_id = ("id", "session")
    search_fields = ["=session__owner__username", "=session__owner__email"]
    search_help_text = "Turn id, session id, user name or e-mail, in full."
    ordering = ["-created_at"]
    exclude = ["token", "focus"]  # a key to the session's lease, and words of its owner

    @admin.display(ordering="session__owner__username")
    def owner(self, turn: Turn) -> SafeString:
        return linked(turn.session.owner)

    @admin.display(description="session")
    def of_session(self, turn: Turn) -> SafeString:
        return linked(turn, "session_id", to="copilot_session")


@admin.register(Message)
class MessageAdmin(ConversationAdmin):
    """Whose it is and where it stands; what was said is read only by opening one row."""

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
    search_help_text = "Id of the message, its session or turn, user name or e-mail, in full."
    ordering = ["-created_at"]
    exclude = ["replay"]  # the provider's opaque data

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Long columns are left in the database until one row is opened."""
        rows = super().get_queryset(request)
        return rows if _opens_one_row(request) else rows.defer("content", "data", "server_context", "replay")

    @admin.display(ordering="session__owner__username")
    def owner(self, message: Message) -> SafeString:
        return linked(message.session.owner)

    @admin.display(description="turn")
    def of_turn(self, message: Message) -> SafeString:
        return linked(message, "turn_id", to="copilot_turn")


@admin.register(ModelCall)
class ModelCallAdmin(ViewOnly):
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
        one_of("provider", ModelEntry.Provider.values),
        one_of("purpose", PURPOSES),
        one_of("cost_source", COST_SOURCES),
        "aborted",
        "estimated",
    ]
    found_by_id = ("id", "turn")
    search_fields = ["=turn__session__owner__username", "=turn__session__owner__email"]
    search_help_text = "Id of the call or its turn, user name or e-mail, in full."
    ordering = ["-created_at"]

    @admin.display(description="turn")
    def of_turn(self, call: ModelCall) -> SafeString:
        return linked(call, "turn_id", to="copilot_turn")


@admin.register(WorkspaceFile)
class WorkspaceFileAdmin(ViewOnly):
    list_display = [
        "id",
        "owner",
        "mime",
        "size_bytes",
        "scan",
        "source",
        "created_at",
        "deleted_at",
        "purged_at",
    ]
    list_filter = ["scan", "source"]
    list_select_related = ["owner"]
    found_by_id = ("id", "session")
    search_fields = ["=owner__username", "=owner__email"]
    search_help_text = "File id, session id, user name or e-mail, in full."
    ordering = ["-created_at"]
    exclude = ["storage_key"]


@admin.register(Share)
class ShareAdmin(ViewOnly):
    list_display = [
        "id",
        "owner",
        "kind",
        "created_at",
        "expires_at",
        "revoked_at",
        "revoke_reason",
        "view_count",
    ]
    list_filter = ["kind", "revoke_reason"]
    list_select_related = ["owner"]
    found_by_id = ("id", "session", "file", "token")
    search_fields = ["=owner__username", "=owner__email"]
    search_help_text = "Share id, token, session or file id, user name or e-mail, in full."
    ordering = ["-created_at"]
    exclude = ["token", "password_hash", "payload"]  # who looks at this page is not invited by that
    actions = ["take_down"]

    @admin.action(description="Take down", permissions=["take_down"])
    def take_down(self, request: HttpRequest, rows: QuerySet[Share]) -> HttpResponse | None:
        """Asks for the reason first, which the owner is told."""
        reason = request.POST.get("reason", "").strip()
        if not reason:
            context = {**self.admin_site.each_context(request), "shares": rows, "opts": self.model._meta}
            return render(request, "admin/copilot/share/take_down.html", context)
        down = [share for share in rows.select_related("owner") if shares.take_down(share, reason)]
        for share in down:
            self.log_change(request, share, f"Taken down: {reason}")
        self.message_user(request, f"Taken down: {len(down)}.")
        return None

    def has_take_down_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("copilot.change_share")


@admin.register(ExportJob)
class ExportJobAdmin(ViewOnly):
    list_display = ["id", "owner", "format", "state", "error", "created_at", "finished_at", "expires_at"]
    list_filter = ["state", "format"]
    list_select_related = ["owner"]
    found_by_id = ("id", "session")
    search_fields = ["=owner__username", "=owner__email"]
    search_help_text = "Export id, session id, user name or e-mail, in full."
    ordering = ["-created_at"]
    exclude = ["storage_key"]


@admin.register(ErasureJob)
class ErasureJobAdmin(ViewOnly):
    list_display = [
        "id",
        "user",
        "requested_at",
        "due_at",
        "phase",
        "error",
        "next_try_at",
        "cancelled_at",
        "finished_at",
    ]
    list_select_related = ["user"]
    found_by_id = ("id",)
    search_fields = ["=user__username", "=user__email"]
    search_help_text = "Erasure id, user name or e-mail, in full."
    ordering = ["-requested_at"]


@admin.register(ApiKey)
class ApiKeyAdmin(ViewOnly):
    list_display = [
        "prefix",
        "user",
        "name",
        "scopes",
        "created_at",
        "last_used_at",
        "expires_at",
        "revoked_at",
    ]
    list_select_related = ["user"]
    search_fields = ["=prefix", "=user__username", "=user__email"]
    search_help_text = "The key's prefix, user name or e-mail, in full."
    ordering = ["-created_at"]
    exclude = ["secret_hash"]
    actions = ["revoke"]

    @admin.action(description="Revoke", permissions=["revoke"])
    def revoke(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> None:
        revoked = 0
        for key in keys:
            try:
                api_keys.revoke(key.user_id, key.pk)
            except NotFound:
                continue  # somebody was faster
            self.log_change(request, key, "Revoked.")
            revoked += 1
        self.message_user(request, f"Revoked: {revoked}.")

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Looking takes the right to view, revoking the right to change."""
        return request.user.has_perm("copilot.change_apikey")


@admin.register(Personality)
class PersonalityAdmin(AnyAdmin):
    """Written here and nowhere else; what is switched off speaks no more, from the next turn on (A30.1)."""

    list_display = ["name", "tone", "style", "enabled"]
    list_filter = ["enabled"]
    search_fields = ["name"]


@admin.register(WorkerBeat)
class WorkerBeatAdmin(ViewOnly):
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


def _opens_one_row(request: HttpRequest) -> bool:
    match = request.resolver_match
    return match is not None and "object_id" in match.kwargs
