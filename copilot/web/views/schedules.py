"""Page of scheduled tasks: list, create, cancel, switch on again."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from copilot.accounts import preferences
from copilot.chat.permissions import UNRESTRICTED
from copilot.schedules import services as schedules
from copilot.web.forms import ScheduleForm
from copilot.web.views.base import get_request_user, parse_offset, perform_and_redirect

SCHEDULES_PER_PAGE = 25  # disabled tasks are kept, so there may be many


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def manage_schedules(request: HttpRequest) -> HttpResponse:
    """List and create tasks; a refused form keeps what was entered."""
    owner_id = get_request_user(request).pk
    time_zone = preferences.get_preferences(owner_id).timezone
    form = ScheduleForm.from_request(request, initial={"timezone": time_zone})
    if form.is_valid():
        with form.refusals_as_errors():
            schedules.create_schedule(owner_id, form.build_request(), UNRESTRICTED)
            messages.success(request, _("Task scheduled."))
            return redirect("schedules")
    context = {"form": form, **_build_list_context(owner_id, parse_offset(request))}
    return render(request, "copilot/schedules.html", context, status=form.status)


def _build_list_context(owner_id: int, offset: int) -> dict[str, object]:
    found = list(schedules.list_schedules(owner_id)[offset : offset + SCHEDULES_PER_PAGE + 1])
    rows = found[:SCHEDULES_PER_PAGE]
    runs = schedules.get_last_runs(rows)
    return {
        "tasks": [
            {"row": row, "next_runs": schedules.list_next_runs(row), "last": runs.get(row.pk)} for row in rows
        ],
        "newer": max(offset - SCHEDULES_PER_PAGE, 0) if offset else None,
        "older": offset + SCHEDULES_PER_PAGE if len(found) > SCHEDULES_PER_PAGE else None,
    }


@login_required
@require_POST
def cancel_schedule(request: HttpRequest, schedule_id: UUID) -> HttpResponse:
    return perform_and_redirect(
        request,
        lambda: schedules.cancel_schedule(get_request_user(request).pk, schedule_id),
        _("Task cancelled."),
        then="schedules",
    )


@login_required
@require_POST
def enable_schedule(request: HttpRequest, schedule_id: UUID) -> HttpResponse:
    return perform_and_redirect(
        request,
        lambda: schedules.enable_schedule(get_request_user(request).pk, schedule_id),
        _("Task turned on."),
        then="schedules",
    )
