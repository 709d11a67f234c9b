"""The page of a user's API keys."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from copilot import api_keys, words
from copilot.accounts.recent_login import recent_login_required
from copilot.errors import Refused
from copilot.views.acting import done, offset_of, user_of

PAGE = 25


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
@recent_login_required
def keys(request: HttpRequest) -> HttpResponse:
    """List and make; the secret is on this one page and never again."""
    user = user_of(request)
    secret = ""
    if request.method == "POST":
        try:
            made = api_keys.create(
                user,
                name=request.POST.get("name", "").strip()[:100],
                scopes=tuple(request.POST.getlist("scopes")),
            )
            secret = made.token
        except Refused as problem:
            messages.error(request, words.of_refusal(problem))
    offset = offset_of(request)
    found = api_keys.of_user(user.pk)[offset : offset + PAGE + 1]
    context = {
        "keys": found[:PAGE],
        "newer": max(offset - PAGE, 0) if offset else None,
        "older": offset + PAGE if len(found) > PAGE else None,
        "secret": secret,
        "scopes": [(name, said) for name, said in _scopes() if name != "staff" or user.is_staff],
        "usual": api_keys.USUAL_SCOPES,
    }
    return render(request, "copilot/api_keys.html", context)


def _scopes() -> list[tuple[str, str]]:
    """By name, and what it lets a program do (A20.6)."""
    said = {
        "read": _("see everything you can see"),
        "chat": _("talk: chats, messages, decisions, files"),
        "manage": _("change shared links, agents, tasks, memory, MCP servers, connected chats; export"),
        "billing": _("change plan and credits"),
        "staff": _("read diagnostics and everybody's billing"),
    }
    return [(scope, said[scope]) for scope in api_keys.SCOPES]


@login_required
@require_POST
def revoke_all_keys(request: HttpRequest) -> HttpResponse:
    count = api_keys.revoke_all(user_of(request).pk)
    said = ngettext("{count} key revoked.", "{count} keys revoked.", count)
    messages.success(request, said.format(count=count))
    return redirect("api_keys")


@login_required
@require_POST
def revoke_key(request: HttpRequest, key_id: UUID) -> HttpResponse:
    return done(
        request,
        lambda: api_keys.revoke(user_of(request).pk, key_id),
        _("The key was revoked."),
        then="api_keys",
    )
