"""Pages for tools and MCP servers."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from config.core.errors import RequestRefused
from copilot.tools import availability
from copilot.tools.mcp import connection_trials
from copilot.tools.mcp import services as mcp
from copilot.web import i18n
from copilot.web.forms import McpServerChangeForm, McpServerCreationForm
from copilot.web.views.base import build_action_view, get_request_user, not_found_as_404


@login_required
@never_cache
@require_GET
def list_tools(request: HttpRequest) -> HttpResponse:
    return render(
        request, "copilot/tools.html", {"tools": availability.list_user_tools(get_request_user(request).pk)}
    )


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def manage_mcp_servers(request: HttpRequest) -> HttpResponse:
    """List and add servers. A refused form keeps its values except secrets, which are never sent back."""
    form = McpServerCreationForm.from_request(request)
    if form.is_valid():
        with form.refusals_as_errors():
            mcp.create_server(get_request_user(request).pk, form.build_draft())
            messages.success(request, _("Server added. Its tools are available from your next message."))
            return redirect("mcp_servers")
    return _render_servers(request, new=form)


@login_required
@require_POST
def change_mcp_server(request: HttpRequest, server_id: UUID) -> HttpResponse:
    """Save changes. Empty secrets stay as they are, unless the URL has another origin."""
    owner_id = get_request_user(request).pk
    with not_found_as_404():
        before = mcp.get_own_server(owner_id, server_id)
    form = McpServerChangeForm.from_request(request, server=before)
    if form.is_valid():
        with not_found_as_404(), form.refusals_as_errors():
            draft = form.apply_to(mcp.draft_from_server(before))
            saved = mcp.update_server(owner_id, server_id, draft)
            if draft.secrets is None and before.secrets and not saved.secrets:
                messages.warning(
                    request, _("The URL has a different host, so its headers were removed. Enter them again.")
                )
            messages.success(request, _("Saved. It applies from your next message."))
            return redirect("mcp_servers")
    return _render_servers(request, wrong=form)


def _render_servers(
    request: HttpRequest,
    *,
    new: McpServerCreationForm | None = None,
    wrong: McpServerChangeForm | None = None,
) -> HttpResponse:
    rows = mcp.list_visible_servers(get_request_user(request).pk)
    context = {
        "own": [
            {
                "row": row,
                "secrets": mcp.list_secret_names(row),
                "form": wrong if wrong and wrong.server_id == row.pk else McpServerChangeForm(server=row),
            }
            for row in rows
            if row.owner_id is not None
        ],
        "everybodys": [row for row in rows if row.owner_id is None],
        "form": new or McpServerCreationForm(),
    }
    refused = wrong or new
    return render(request, "copilot/mcp_servers.html", context, status=refused.status if refused else 200)


@login_required
@require_POST
async def check_mcp_server(request: HttpRequest, server_id: UUID) -> HttpResponse:
    """Test the connection and report the result. No thread is held while the server is awaited."""
    user_id = (await request.auser()).pk
    assert user_id is not None  # login_required admits nobody else
    try:
        with not_found_as_404():
            trial = await connection_trials.try_server(user_id, user_id, server_id)
    except RequestRefused as problem:
        messages.error(request, i18n.translate_refusal(problem))
        return redirect("mcp_servers")
    if trial.error:
        messages.error(request, trial.error)
    else:
        count = len(trial.tools)
        messages.success(
            request,
            ngettext("Connected: %(count)d tool.", "Connected: %(count)d tools.", count) % {"count": count},
        )
    return redirect("mcp_servers")


remove_mcp_server = build_action_view(mcp.delete_server, gettext_lazy("Server removed."), then="mcp_servers")
