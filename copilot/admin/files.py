"""Read-only staff pages for workspace files, shares and exports, with taking shares down."""

from __future__ import annotations

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from config.core.admin import ReadOnlyAdmin
from config.core.forms import PageForm, ReasonField
from copilot.models import ExportJob, Share, WorkspaceFile
from copilot.sharing import services as sharing


class TakeDownForm(PageForm):
    reason = ReasonField(max_length=500, widget=forms.TextInput(attrs={"size": 80}))


@admin.register(WorkspaceFile)
class WorkspaceFileAdmin(ReadOnlyAdmin):
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
    search_help_text = "Exact file id, session id, user name or email."
    ordering = ["-created_at"]
    exclude = ["storage_key"]


@admin.register(Share)
class ShareAdmin(ReadOnlyAdmin):
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
    search_help_text = "Exact share id, token, session id, file id, user name or email."
    ordering = ["-created_at"]
    exclude = [
        "token",
        "password_hash",
        "payload",
    ]  # staff access to this page is no invitation to open the share
    actions = ["take_down"]

    @admin.action(description="Take down", permissions=["take_down"])
    def take_down(self, request: HttpRequest, rows: QuerySet[Share]) -> HttpResponse | None:
        """Ask for a reason first, which the owner gets to read."""
        form = TakeDownForm(request.POST if "reason" in request.POST else None)
        if not form.is_valid():
            context = {"shares": rows, "opts": self.model._meta, "form": form}
            page = {**self.admin_site.each_context(request), **context}
            return render(request, "admin/copilot/share/take_down.html", page, status=form.status)
        reason = form.cleaned_data["reason"]
        down = [share for share in rows.select_related("owner") if sharing.take_down_share(share, reason)]
        for share in down:
            self.log_change(request, share, f"Taken down: {reason}")
        self.message_user(request, f"Taken down: {len(down)}.")
        return None

    def has_take_down_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("copilot.change_share")


@admin.register(ExportJob)
class ExportJobAdmin(ReadOnlyAdmin):
    list_display = ["id", "owner", "format", "state", "error", "created_at", "finished_at", "expires_at"]
    list_filter = ["state", "format"]
    list_select_related = ["owner"]
    found_by_id = ("id", "session")
    search_fields = ["=owner__username", "=owner__email"]
    search_help_text = "Exact export id, session id, user name or email."
    ordering = ["-created_at"]
    exclude = ["storage_key"]
