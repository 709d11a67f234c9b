"""The page of tasks that run by the clock: see, make, cancel, switch on again (A26)."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from copilot import cron, preferences, words
from copilot import schedules as tasks
from copilot.errors import Refused
from copilot.permissions import UNRESTRICTED
from copilot.views.acting import done, offset_of, user_of

PAGE = 25  # those switched off are kept, however many


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def schedules(request: HttpRequest) -> HttpResponse:
    """What was refused stays in the form, so that nothing has to be written twice."""
    owner_id = user_of(request).pk
    form = {name: request.POST.get(name, "") for name in ("name", "prompt", "cron", "timezone")}
    status = 200
    if request.method == "POST":
        try:
            tasks.create(owner_id, _asked(form), UNRESTRICTED)
        except Refused as problem:
            messages.error(request, words.of_refusal(problem))
            status = problem.status
        else:
            messages.success(request, _("The task is on the clock."))
            return redirect("schedules")
    form["timezone"] = form["timezone"] or preferences.of_user(owner_id).timezone
    context = {"form": form, "smallest": cron.SMALLEST_MINUTES, **_listed(owner_id, offset_of(request))}
    return render(request, "copilot/schedules.html", context, status=status)


def _asked(form: dict[str, str]) -> tasks.Asked:
    prompt = form["prompt"].replace("\r\n", "\n")  # as browsers send line breaks
    return tasks.Asked(prompt=prompt, cron=form["cron"], timezone=form["timezone"], name=form["name"])


def _listed(owner_id: int, offset: int) -> dict[str, object]:
    found = list(tasks.of_owner(owner_id)[offset : offset + PAGE + 1])
    rows = found[:PAGE]
    runs = tasks.last_runs(rows)
    return {
        "tasks": [{"row": row, "next_runs": tasks.next_runs(row), "last": runs.get(row.pk)} for row in rows],
        "newer": max(offset - PAGE, 0) if offset else None,
        "older": offset + PAGE if len(found) > PAGE else None,
    }


@login_required
@require_POST
def cancel_schedule(request: HttpRequest, schedule_id: UUID) -> HttpResponse:
    return done(
        request,
        lambda: tasks.cancel(user_of(request).pk, schedule_id),
        _("The task was removed."),
        then="schedules",
    )


@login_required
@require_POST
def switch_schedule_on(request: HttpRequest, schedule_id: UUID) -> HttpResponse:
    return done(
        request,
        lambda: tasks.switch_on(user_of(request).pk, schedule_id),
        _("The task is on the clock again."),
        then="schedules",
    )
