"""The page of archived chats: out of the way, not gone (W2.9)."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from copilot import queries, sessions, words
from copilot.errors import InvalidRequest
from copilot.views.acting import done, user_of


@login_required
@never_cache
@require_GET
def archived(request: HttpRequest) -> HttpResponse:
    try:
        page = queries.sessions_page(
            user_of(request).pk, archived=True, cursor=request.GET.get("cursor", "")[:500] or None
        )
    except InvalidRequest as problem:
        messages.error(request, words.of_refusal(problem))
        return redirect("archived")
    return render(request, "copilot/archived.html", {"page": page})


@login_required
@require_POST
def bring_back(request: HttpRequest, session_id: UUID) -> HttpResponse:
    owner_id = user_of(request).pk
    return done(
        request,
        lambda: sessions.update(owner_id, session_id, archived=False),
        _("The chat is back in your list."),
        then="archived",
    )
