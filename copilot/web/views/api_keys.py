"""Pages for a user's API keys."""

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

from config.core.errors import RequestRefused
from copilot.accounts import api_keys
from copilot.accounts.recent_login import recent_login_required
from copilot.web import i18n
from copilot.web.views.base import get_request_user, parse_offset, perform_and_redirect

KEYS_PER_PAGE = 25


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
@recent_login_required
def manage_api_keys(request: HttpRequest) -> HttpResponse:
    """List and create keys. The secret is shown on this page only."""
    user = get_request_user(request)
    secret = ""
    if request.method == "POST":
        try:
            created = api_keys.create_api_key(
                user,
                name=request.POST.get("name", "").strip()[:100],
                scopes=tuple(request.POST.getlist("scopes")),
            )
            secret = created.token
        except RequestRefused as problem:
            messages.error(request, i18n.translate_refusal(problem))
    offset = parse_offset(request)
    found = api_keys.list_api_keys(user.pk)[offset : offset + KEYS_PER_PAGE + 1]
    context = {
        "keys": found[:KEYS_PER_PAGE],
        "newer": max(offset - KEYS_PER_PAGE, 0) if offset else None,
        "older": offset + KEYS_PER_PAGE if len(found) > KEYS_PER_PAGE else None,
        "secret": secret,
        "scopes": [
            (name, description)
            for name, description in _list_scope_descriptions()
            if name != "staff" or user.is_staff
        ],
        "usual": api_keys.DEFAULT_SCOPES,
    }
    return render(request, "copilot/api_keys.html", context)


def _list_scope_descriptions() -> list[tuple[str, str]]:
    descriptions = {
        "read": _("read everything you can see"),
        "chat": _("use chats: send messages, decide, upload files"),
        "manage": _(
            "manage shared links, agents, tasks, memory, MCP servers and connected chats, and export"
        ),
        "billing": _("change your plan and buy credits"),
        "staff": _("read diagnostics and everybody's billing"),
    }
    return [(scope, descriptions[scope]) for scope in api_keys.SCOPES]


@login_required
@require_POST
def revoke_all_api_keys(request: HttpRequest) -> HttpResponse:
    count = api_keys.revoke_all_api_keys(get_request_user(request).pk)
    message = ngettext("{count} key revoked.", "{count} keys revoked.", count)
    messages.success(request, message.format(count=count))
    return redirect("api_keys")


@login_required
@require_POST
def revoke_api_key(request: HttpRequest, key_id: UUID) -> HttpResponse:
    return perform_and_redirect(
        request,
        lambda: api_keys.revoke_api_key(get_request_user(request).pk, key_id),
        _("Key revoked."),
        then="api_keys",
    )
