"""Page of a user's memories: list, edit, forget, switch on or off."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from copilot.memories import services as memories
from copilot.web.forms import MemoryForm, MemorySwitchForm
from copilot.web.views.base import (
    get_request_user,
    not_found_as_404,
    parse_offset,
    perform_and_redirect,
    redirect_to_list,
)

MEMORIES_PER_PAGE = 25


@login_required
@never_cache
@require_GET
def list_memories(request: HttpRequest) -> HttpResponse:
    return _render_memories(request)


@login_required
@require_POST
def switch_memory(request: HttpRequest) -> HttpResponse:
    form = MemorySwitchForm.from_request(request)
    if form.is_valid():
        on = form.cleaned_data["on"]
        memories.set_memory_enabled(get_request_user(request).pk, on=on)
        messages.success(
            request, _("Memory is on.") if on else _("Memory is off. Existing memories are kept.")
        )
    return redirect("memories")


@login_required
@require_POST
def edit_memory(request: HttpRequest, memory_id: UUID) -> HttpResponse:
    form = MemoryForm.from_request(request, memory_id=memory_id)
    if form.is_valid():
        with not_found_as_404(), form.refusals_as_errors():
            memories.edit_memory(get_request_user(request).pk, memory_id, form.cleaned_data["text"])
            messages.success(request, _("Memory updated."))
            return redirect_to_list(request, "memories")
    return _render_memories(request, wrong=form)


@login_required
@require_POST
def forget_memory(request: HttpRequest, memory_id: UUID) -> HttpResponse:
    return perform_and_redirect(
        request,
        lambda: memories.forget_memory(get_request_user(request).pk, memory_id),
        _("Memory forgotten."),
        then="memories",
    )


def _render_memories(request: HttpRequest, *, wrong: MemoryForm | None = None) -> HttpResponse:
    owner_id, offset = get_request_user(request).pk, parse_offset(request)
    found = memories.list_memories(owner_id)[offset : offset + MEMORIES_PER_PAGE + 1]
    items = [
        {
            "row": row,
            "form": wrong
            if wrong and wrong.memory_id == row.id
            else MemoryForm(memory_id=row.id, initial={"text": row.text}),
        }
        for row in found[:MEMORIES_PER_PAGE]
    ]
    context = {
        "items": items,
        "offset": offset,
        "newer": max(offset - MEMORIES_PER_PAGE, 0) if offset else None,
        "older": offset + MEMORIES_PER_PAGE if len(found) > MEMORIES_PER_PAGE else None,
        "on": memories.is_memory_enabled(owner_id),
    }
    return render(request, "copilot/memories.html", context, status=wrong.status if wrong else 200)
