"""The page of what is remembered: read, change, forget, switch off (A25.1)."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from copilot import memories as remembered
from copilot.views.acting import done, offset_of, user_of

PAGE = 25


@login_required
@never_cache
@require_GET
def memories(request: HttpRequest) -> HttpResponse:
    """What the agent remembers of its user, to be read, changed and forgotten (A25.1)."""
    owner_id, offset = user_of(request).pk, offset_of(request)
    found = remembered.listed(owner_id)[offset : offset + PAGE + 1]
    context = {
        "items": found[:PAGE],
        "newer": max(offset - PAGE, 0) if offset else None,
        "older": offset + PAGE if len(found) > PAGE else None,
        "on": remembered.is_on(owner_id),
        "most": remembered.MAX_CHARACTERS,
    }
    return render(request, "copilot/memories.html", context)


@login_required
@require_POST
def switch_memory(request: HttpRequest) -> HttpResponse:
    on = request.POST.get("on") == "1"
    remembered.switch(user_of(request).pk, on=on)
    messages.success(request, _("Memory is on.") if on else _("Memory is off. What is there is kept."))
    return redirect("memories")


@login_required
@require_POST
def edit_memory(request: HttpRequest, memory_id: UUID) -> HttpResponse:
    text = request.POST.get("text", "")
    return done(
        request, lambda: remembered.edit(user_of(request).pk, memory_id, text), _("Changed."), then="memories"
    )


@login_required
@require_POST
def forget_memory(request: HttpRequest, memory_id: UUID) -> HttpResponse:
    return done(
        request, lambda: remembered.forget(user_of(request).pk, memory_id), _("Forgotten."), then="memories"
    )
