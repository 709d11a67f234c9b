"""Staff pages for MCP servers shared with everybody; their secrets can be set but not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse

from config.core.db import run_in_thread
from config.core.errors import RequestRefused
from config.core.forms import PageForm, TextListField
from copilot.models import McpServer
from copilot.tools.mcp import connection_trials
from copilot.tools.mcp import services as mcp

if TYPE_CHECKING:  # Django's classes are not generic at run time
    ServerAdmin = admin.ModelAdmin[McpServer]
    ServerForm = forms.ModelForm[McpServer]
else:
    ServerAdmin, ServerForm = admin.ModelAdmin, forms.ModelForm


class SelectedServersForm(PageForm):
    """The ticked rows of the list page, under the name that Django's admin gives them (ACTION_CHECKBOX_NAME)."""

    _selected_action = TextListField(required=False)


class McpServerForm(ServerForm):
    command_lines = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 3}),
        label="Command",
        help_text="For stdio: the absolute path of the program, then its arguments, one per line. "
        "The whole command must be listed in MCP_STDIO_COMMANDS on the workers.",
    )
    secret_lines = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "autocomplete": "off", "spellcheck": "false"}),
        label="Secrets",
        help_text="Headers for http, environment variables for stdio; one per line, as NAME=value. "
        "Leave empty to keep them. They are removed when the host or command changes, and never shown again.",
    )
    forget_secrets = forms.BooleanField(required=False)
    unasked_lines = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 3}),
        label="Run without asking",
        help_text="Names of tools that run without approval, one per line.",
    )

    class Meta:
        model = McpServer
        fields = ["name", "transport", "url", "trusted", "enabled"]

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.fields["command_lines"].initial = "\n".join(self.instance.command)
        self.fields["unasked_lines"].initial = "\n".join(self.instance.never_ask)

    def clean(self) -> None:
        super().clean()
        if self.errors:
            return
        try:
            mcp.check_draft(None, self.draft())
        except RequestRefused as problem:
            raise forms.ValidationError(problem.message) from problem
        same_name = McpServer.objects.filter(owner=None, name=self.cleaned_data["name"])
        if same_name.exclude(pk=self.instance.pk).exists():
            self.add_error("name", "A server with this name already exists.")

    def draft(self) -> mcp.McpServerDraft:
        cleaned = self.cleaned_data
        return mcp.McpServerDraft(
            name=cleaned["name"],
            transport=cleaned["transport"],
            url=cleaned["url"],
            command=tuple(cleaned["command_lines"].splitlines()),
            secrets={} if cleaned["forget_secrets"] else self._secrets() or None,
            trusted=cleaned["trusted"],
            never_ask=tuple(cleaned["unasked_lines"].splitlines()),
            enabled=cleaned["enabled"],
        )

    def _secrets(self) -> dict[str, str]:
        lines = [line for line in self.cleaned_data["secret_lines"].splitlines() if line.strip()]
        if any("=" not in line for line in lines):
            raise forms.ValidationError("Enter one secret per line, as NAME=value.")
        pairs = (line.partition("=") for line in lines)
        return {name.strip(): value.strip() for name, _, value in pairs}


@admin.register(McpServer)
class McpServerAdmin(ServerAdmin):
    """Manage servers shared with everybody; those that users add are private to them."""

    form = McpServerForm
    list_display = ["name", "transport", "enabled", "trusted", "failures", "last_error", "listed_at"]
    readonly_fields = ["secret_names", "version", "failures", "retry_at", "last_error", "listed_at", "tools"]
    actions = ["test_connection"]
    ordering = ["name"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[McpServer]:
        return super().get_queryset(request).filter(owner=None)

    @admin.display(description="Stored secrets")
    def secret_names(self, server: McpServer) -> str:
        return ", ".join(mcp.list_secret_names(server)) or "none"

    def save_model(self, request: HttpRequest, obj: McpServer, form: forms.BaseForm, change: bool) -> None:
        assert isinstance(form, McpServerForm)
        saved = (
            mcp.update_server(None, obj.pk, form.draft()) if change else mcp.create_server(None, form.draft())
        )
        obj.pk = saved.pk

    def delete_model(self, request: HttpRequest, obj: McpServer) -> None:
        mcp.delete_server(None, obj.pk)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[McpServer]) -> None:
        for server in queryset:
            mcp.delete_server(None, server.pk)

    @admin.action(description="Test the connection", permissions=["change"])
    def test_connection(self, request: HttpRequest, queryset: QuerySet[McpServer]) -> HttpResponse:
        """Have the browser resend the form to `test_view`: actions run on a request thread, which must not wait."""
        return HttpResponseRedirect(reverse("admin:copilot_mcpserver_test"), preserve_request=True)

    def get_urls(self) -> list[URLPattern]:
        own = path("test-connection/", self.test_view, name="copilot_mcpserver_test")
        return [own, *super().get_urls()]

    async def test_view(self, request: HttpRequest) -> HttpResponse:
        """Connect to the selected servers one after the other and report each result."""
        user_id, servers = await run_in_thread(self._selected_servers, request)
        for server in servers:
            try:
                trial = await connection_trials.try_server(user_id, None, server.pk)
            except RequestRefused as problem:
                self.message_user(request, problem.message, messages.ERROR)
                break
            if trial.error:
                self.message_user(request, f"MCP server {server.name}: {trial.error}", messages.ERROR)
            else:
                self.message_user(
                    request, f"MCP server {server.name}: {len(trial.tools)} tools", messages.SUCCESS
                )
        return HttpResponseRedirect(reverse("admin:copilot_mcpserver_changelist"))

    def _selected_servers(self, request: HttpRequest) -> tuple[int, list[McpServer]]:
        """Read the form of the list page, for staff who may use its action."""
        allowed = self.admin_site.has_permission(request) and self.has_change_permission(request)
        if request.method != "POST" or not allowed or request.user.pk is None:
            raise PermissionDenied
        form = SelectedServersForm.from_request(request)
        selected = set(form.cleaned_data[ACTION_CHECKBOX_NAME]) if form.is_valid() else set()
        rows = self.get_queryset(request).order_by("name")
        return request.user.pk, [row for row in rows if str(row.pk) in selected]
