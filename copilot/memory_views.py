"""The page of what is remembered: read, change, forget, switch off (A25.1)."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from copilot import memories as remembered
from copilot.errors import NotFound, Refused


@login_required
@never_cache
@require_GET
def memories(request: HttpRequest) -> HttpResponse:
    """What the agent remembers of its user, to be read, changed and forgotten (A25.1)."""
    owner_id = _user_id(request)
    context = {
        "items": remembered.listed(owner_id),
        "on": remembered.is_on(owner_id),
        "most": remembered.MAX_CHARACTERS,
    }
    return render(request, "copilot/memories.html", context)


@login_required
@require_POST
def switch_memory(request: HttpRequest) -> HttpResponse:
    on = request.POST.get("on") == "1"
    remembered.switch(_user_id(request), on=on)
    messages.success(request, _("Memory is on.") if on else _("Memory is off. What is there is kept."))
    return redirect("memories")


@login_required
@require_POST
def edit_memory(request: HttpRequest, memory_id: UUID) -> HttpResponse:
    text = request.POST.get("text", "")
    return _done(request, lambda: remembered.edit(_user_id(request), memory_id, text), _("Changed."))


@login_required
@require_POST
def forget_memory(request: HttpRequest, memory_id: UUID) -> HttpResponse:
    return _done(request, lambda: remembered.forget(_user_id(request), memory_id), _("Forgotten."))


def _done(request: HttpRequest, act: Callable[[], object], done: str) -> HttpResponse:
    """Do it and say so, or say why not; what is not there is a page that is not there."""
    try:
        act()
    except NotFound as problem:
        raise Http404 from problem
    except Refused as problem:
        messages.error(request, problem.message)
    else:
        messages.success(request, done)
    return redirect("memories")


def _user_id(request: HttpRequest) -> int:
    assert isinstance(request.user, User)  # login_required let nobody else in
    return request.user.pk
