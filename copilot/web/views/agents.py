"""Pages for agents and scheduled tasks."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from config.core.errors import InvalidRequest, RequestRefused
from config.core.json_values import JSON
from copilot.accounts import preferences
from copilot.agents import services as agents
from copilot.chat import admission, sessions
from copilot.chat.commands import SendMessage
from copilot.chat.permissions import UNRESTRICTED
from copilot.models import AgentVersion, Schedule, ScheduleRun, Session
from copilot.schedules import patterns, runner
from copilot.schedules import services as schedules
from copilot.web import i18n
from copilot.web.forms import AgentForm, AgentRunForm, ScheduleForm
from copilot.web.views.base import (
    ROWS_PER_PAGE,
    build_action_view,
    build_page_links,
    get_request_user,
    not_found_as_404,
    parse_offset,
)


@login_required
@never_cache
@require_GET
def list_agents(request: HttpRequest) -> HttpResponse:
    owner_id = get_request_user(request).pk
    after = request.GET.get("after")
    try:
        listed = agents.list_agents(
            owner_id, after=UUID(after) if after else None, limit=agents.AGENTS_PER_PAGE + 1
        )
    except (ValueError, InvalidRequest) as problem:
        raise Http404 from problem
    page = listed[: agents.AGENTS_PER_PAGE]
    more = page[-1].pk if len(listed) > agents.AGENTS_PER_PAGE else None
    return render(request, "copilot/agents.html", {"agents": page, "more": more})


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def create_agent(request: HttpRequest) -> HttpResponse:
    form = AgentForm.from_request(request)
    if form.is_valid():
        with form.refusals_as_errors():
            version = agents.create_agent(get_request_user(request).pk, form.build_draft())
            messages.success(request, _("Agent created."))
            return redirect("agent", version.agent_id)
    return render(request, "copilot/agent.html", {"form": form}, status=form.status)


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def edit_agent(request: HttpRequest, agent_id: UUID) -> HttpResponse:
    """Show the agent, and save changes as its next version."""
    owner_id = get_request_user(request).pk
    with not_found_as_404():
        version = agents.get_version(owner_id, agent_id)
    form = AgentForm.from_request(request, initial=AgentForm.build_initial(version))
    if form.is_valid():
        with not_found_as_404(), form.refusals_as_errors():
            expected = form.cleaned_data["expected_version"] or 0
            agents.edit_agent(owner_id, agent_id, expected, form.build_changes())
            messages.success(request, _("Saved as a new version."))
            return redirect("agent", agent_id)
    return _render_agent(request, version, form=form)


@login_required
@require_POST
def run_agent(request: HttpRequest, agent_id: UUID) -> HttpResponse:
    """Start a run, which is a chat of its own, and redirect to it."""
    owner_id = get_request_user(request).pk
    with not_found_as_404():
        version = agents.get_version(owner_id, agent_id)
    form = AgentRunForm.from_request(request)
    if form.is_valid():
        with form.refusals_as_errors():
            return redirect("chat_session", _start_run(owner_id, version, form.cleaned_data["inputs"]).pk)
    return _render_agent(request, version, run_form=form)


def _start_run(owner_id: int, version: AgentVersion, inputs: dict[str, JSON]) -> Session:
    text = agents.build_run_prompt(version, inputs)
    with sessions.create_session_for_first_message(owner_id, version.name, agent_version=version) as session:
        admission.submit_message(
            SendMessage(
                session_id=session.pk,
                user_id=owner_id,
                text=text,
                tier=version.tier,
                origin="web",
                permissions=UNRESTRICTED,
            )
        )
    return session


@login_required
@require_POST
def open_agent_builder(request: HttpRequest, agent_id: UUID) -> HttpResponse:
    with not_found_as_404():
        agent = agents.get_agent(get_request_user(request).pk, agent_id)
    return redirect("chat_session", sessions.get_or_create_builder_session(agent.owner_id, agent).pk)


delete_agent = build_action_view(agents.delete_agent, gettext_lazy("Agent deleted."), then="agents")


def _render_agent(
    request: HttpRequest,
    version: AgentVersion,
    *,
    form: AgentForm | None = None,
    run_form: AgentRunForm | None = None,
) -> HttpResponse:
    form = form or AgentForm(initial=AgentForm.build_initial(version))
    run_form = run_form or AgentRunForm()
    context = {"version": version, "form": form, "run_form": run_form}
    return render(request, "copilot/agent.html", context, status=max(form.status, run_form.status))


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
    context = {
        "form": form,
        "zones": preferences.list_time_zones(),
        **_build_list_context(owner_id, parse_offset(request)),
    }
    return render(request, "copilot/schedules.html", context, status=form.status)


def _build_list_context(owner_id: int, offset: int) -> dict[str, object]:
    found = list(schedules.list_schedules(owner_id)[offset : offset + ROWS_PER_PAGE + 1])
    rows = found[:ROWS_PER_PAGE]
    runs = schedules.get_last_runs(rows)
    return {
        "tasks": [
            {
                "row": row,
                "when": _describe_schedule(row),
                "next_runs": schedules.list_next_runs(row),
                "last": _describe_run(runs.get(row.pk)),
            }
            for row in rows
        ],
        **build_page_links(offset, has_more=len(found) > ROWS_PER_PAGE),
    }


def _describe_schedule(schedule: Schedule) -> str:
    """Say when it runs; an expression that is too special for a sentence is shown as it is."""
    pattern = patterns.parse_pattern(schedule.cron)
    return pattern.describe() if pattern else schedule.cron


RUN_OUTCOMES = {
    ScheduleRun.Outcome.STARTED: gettext_lazy("Running"),
    ScheduleRun.Outcome.SUCCEEDED: gettext_lazy("Succeeded"),
    ScheduleRun.Outcome.FAILED: gettext_lazy("Failed"),
    ScheduleRun.Outcome.CANCELLED: gettext_lazy("Stopped"),
    ScheduleRun.Outcome.SKIPPED: gettext_lazy("Skipped"),
    ScheduleRun.Outcome.REFUSED: gettext_lazy("Couldn't start"),
}


def _describe_run(run: ScheduleRun | None) -> dict[str, object] | None:
    if run is None:
        return None
    return {"run": run, "outcome": RUN_OUTCOMES[ScheduleRun.Outcome(run.outcome)]}


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def edit_schedule(request: HttpRequest, schedule_id: UUID) -> HttpResponse:
    """Show one task with its next and past runs, and save changes."""
    owner_id = get_request_user(request).pk
    with not_found_as_404():
        schedule = schedules.get_schedule(owner_id, schedule_id)
    form = ScheduleForm.from_request(
        request, initial=ScheduleForm.build_initial(schedule), has_agent=schedule.agent_id is not None
    )
    if form.is_valid():
        with not_found_as_404(), form.refusals_as_errors():
            schedules.update_schedule(owner_id, schedule_id, form.build_request())
            messages.success(request, _("Task saved."))
            return redirect("schedule", schedule_id)
    offset = parse_offset(request)
    found = list(schedules.list_runs(schedule)[offset : offset + ROWS_PER_PAGE + 1])
    context = {
        "form": form,
        "row": schedule,
        "when": _describe_schedule(schedule),
        "next_runs": schedules.list_next_runs(schedule),
        "runs": [_describe_run(run) for run in found[:ROWS_PER_PAGE]],
        "zones": preferences.list_time_zones(),
        **build_page_links(offset, has_more=len(found) > ROWS_PER_PAGE),
    }
    return render(request, "copilot/schedule.html", context, status=form.status)


@login_required
@require_POST
def run_schedule(request: HttpRequest, schedule_id: UUID) -> HttpResponse:
    """Start a run now and show it in its task's history."""
    try:
        with not_found_as_404():
            run = runner.run_schedule_now(get_request_user(request).pk, schedule_id)
    except RequestRefused as problem:
        messages.error(request, i18n.translate_refusal(problem))
    else:
        if run.outcome == ScheduleRun.Outcome.STARTED:
            messages.success(request, _("Task started."))
        else:
            messages.error(request, _("The task couldn't start: %(reason)s") % {"reason": run.reason})
    return redirect("schedule", schedule_id)


pause_schedule = build_action_view(schedules.pause_schedule, gettext_lazy("Task paused."), then="schedules")


cancel_schedule = build_action_view(
    schedules.cancel_schedule, gettext_lazy("Task deleted."), then="schedules"
)


enable_schedule = build_action_view(
    schedules.enable_schedule, gettext_lazy("Task turned on."), then="schedules"
)
