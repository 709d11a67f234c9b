"""The pages of tools and of one's MCP servers: what there is, what is missing and why, and the servers to manage."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from copilot import mcp, mcp_trials, toolset, words
from copilot.errors import InvalidRequest, Refused
from copilot.views.acting import done, found, user_of


@login_required
@never_cache
@require_GET
def tools(request: HttpRequest) -> HttpResponse:
    """Every tool, and why some are not available (A32.2)."""
    return render(request, "copilot/tools.html", {"tools": toolset.of_user(user_of(request).pk)})


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def servers(request: HttpRequest) -> HttpResponse:
    """List and add; what was refused stays in the form, but for secrets, which are never sent back."""
    status = 200
    if request.method == "POST":
        try:
            mcp.add(user_of(request).pk, _draft(request))
        except Refused as problem:
            messages.error(request, words.of_refusal(problem))
            status = problem.status
        else:
            messages.success(request, _("Added. Its tools are there from your next message on."))
            return redirect("mcp_servers")
    rows = mcp.seen_by(user_of(request).pk)
    context = {
        "own": [{"row": row, "secrets": mcp.secret_names(row)} for row in rows if row.owner_id is not None],
        "everybodys": [row for row in rows if row.owner_id is None],
        "name": request.POST.get("name", ""),
        "url": request.POST.get("url", ""),
    }
    return render(request, "copilot/mcp_servers.html", context, status=status)


@login_required
@require_POST
def change(request: HttpRequest, server_id: UUID) -> HttpResponse:
    """Secrets that were left empty stay as they are, unless the address has another origin."""
    owner_id = user_of(request).pk

    def save() -> None:
        before = mcp.own(owner_id, server_id)
        draft = _changed(request, mcp.drafted(before))
        saved = mcp.change(owner_id, server_id, draft)
        if draft.secrets is None and before.secrets and not saved.secrets:
            messages.warning(
                request, _("The address has another host, so its headers were forgotten. Enter them again.")
            )

    return done(request, save, _("Saved. It applies from your next message."), then="mcp_servers")


@login_required
@require_POST
async def test(request: HttpRequest, server_id: UUID) -> HttpResponse:
    """Connect now, and say what came of it. No thread is held while the server is awaited."""
    user_id = (await request.auser()).pk
    assert user_id is not None  # login_required let nobody else in
    try:
        with found():
            tried = await mcp_trials.try_server(user_id, user_id, server_id)
    except Refused as problem:
        messages.error(request, words.of_refusal(problem))
        return redirect("mcp_servers")
    if tried.error:
        messages.error(request, tried.error)
    else:
        count = len(tried.tools)
        messages.success(
            request,
            ngettext("It answers, with %(count)d tool.", "It answers, with %(count)d tools.", count)
            % {"count": count},
        )
    return redirect("mcp_servers")


@login_required
@require_POST
def remove(request: HttpRequest, server_id: UUID) -> HttpResponse:
    return done(
        request, lambda: mcp.remove(user_of(request).pk, server_id), _("Removed."), then="mcp_servers"
    )


def _draft(request: HttpRequest) -> mcp.Draft:
    return mcp.Draft(
        name=request.POST.get("name", "").strip(),
        url=request.POST.get("url", "").strip(),
        secrets=_secrets(request),
    )


def _changed(request: HttpRequest, draft: mcp.Draft) -> mcp.Draft:
    given = _draft(request)
    return replace(
        draft,
        name=given.name,
        url=given.url,
        secrets={} if request.POST.get("no_secrets") else given.secrets or None,
        enabled=request.POST.get("enabled") == "1",
    )


def _secrets(request: HttpRequest) -> dict[str, str]:
    """One header per line, as `Name: value`."""
    found: dict[str, str] = {}
    for line in request.POST.get("secrets", "").splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon:
            raise InvalidRequest(_("Headers: one per line, as Name: value."))
        found[name.strip()] = value.strip()
    return found
