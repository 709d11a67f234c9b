"""Pages for agents: list, create, edit, run, and open the chat that builds one."""

from __future__ import annotations

import json
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from config.core.errors import InvalidRequest, RequestRefused
from config.core.json_values import JSON
from copilot.agents import services as agents
from copilot.chat import admission, sessions
from copilot.chat.commands import SendMessage
from copilot.chat.permissions import UNRESTRICTED
from copilot.models import AgentVersion
from copilot.tools import json_schema
from copilot.web import i18n
from copilot.web.views.base import get_request_user, not_found_as_404, perform_and_redirect

FormFields = dict[str, object]


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
    if request.method == "GET":
        return render(
            request, "copilot/agent.html", {"form": {"inputs_schema": "{}"}, "tiers": agents.TIERS[1:]}
        )
    try:
        version = agents.create_agent(get_request_user(request).pk, _parse_draft(request))
    except RequestRefused as problem:
        return _render_refused_form(request, problem, agent_id=None)
    messages.success(request, _("Agent created."))
    return redirect("agent", version.agent_id)


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def edit_agent(request: HttpRequest, agent_id: UUID) -> HttpResponse:
    owner_id = get_request_user(request).pk
    with not_found_as_404():
        version = agents.get_version(owner_id, agent_id)
    if request.method == "GET":
        return _render_agent(request, version)
    try:
        expected = int(request.POST.get("expected_version", "0") or 0)
        agents.edit_agent(owner_id, agent_id, expected, _build_changes(_parse_draft(request)))
    except (RequestRefused, ValueError) as problem:
        refusal = (
            problem
            if isinstance(problem, RequestRefused)
            else InvalidRequest("expected_version: not a number.")
        )
        return _render_refused_form(request, refusal, agent_id=agent_id)
    messages.success(request, _("Saved as a new version."))
    return redirect("agent", agent_id)


@login_required
@require_POST
def run_agent(request: HttpRequest, agent_id: UUID) -> HttpResponse:
    """Start a run, which is a chat of its own, and redirect to it."""
    owner_id = get_request_user(request).pk
    with not_found_as_404():
        version = agents.get_version(owner_id, agent_id)
    try:
        text = agents.build_run_prompt(version, _parse_json_field(request, "inputs"))
        with sessions.create_session_for_first_message(
            owner_id, version.name, agent_version=version
        ) as session:
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
    except RequestRefused as problem:
        messages.error(request, i18n.translate_refusal(problem))
        return _render_agent(request, version, status=problem.status, inputs=request.POST.get("inputs", ""))
    return redirect("chat_session", session.pk)


@login_required
@require_POST
def open_agent_builder(request: HttpRequest, agent_id: UUID) -> HttpResponse:
    with not_found_as_404():
        agent = agents.get_agent(get_request_user(request).pk, agent_id)
    return redirect("chat_session", sessions.get_or_create_builder_session(agent.owner_id, agent).pk)


@login_required
@require_POST
def delete_agent(request: HttpRequest, agent_id: UUID) -> HttpResponse:
    return perform_and_redirect(
        request,
        lambda: agents.delete_agent(get_request_user(request).pk, agent_id),
        _("Agent deleted."),
        then="agents",
    )


def _render_agent(
    request: HttpRequest, version: AgentVersion, *, status: int = 200, inputs: str = "{}"
) -> HttpResponse:
    form: FormFields = {
        "name": version.name,
        "description": version.description,
        "instructions": version.instructions,
        "tier": version.tier,
        "tool_choice": _get_tool_choice(version.tools),
        "tools": "\n".join(version.tools or ()),
        "inputs_schema": json_schema.format_json(version.inputs_schema),
    }
    context = {
        "agent_id": version.agent_id,
        "version": version.number,
        "form": form,
        "inputs": inputs,
        "tiers": agents.TIERS[1:],
    }
    return render(request, "copilot/agent.html", context, status=status)


def _render_refused_form(
    request: HttpRequest, problem: RequestRefused, *, agent_id: UUID | None
) -> HttpResponse:
    """Show the form again with its values and every problem above it."""
    details = problem.details.get("details")
    for problem_text in details["errors"] if isinstance(details, dict) else [i18n.translate_refusal(problem)]:
        messages.error(request, problem_text)
    context = {
        "agent_id": agent_id,
        "version": request.POST.get("expected_version", ""),
        "form": request.POST,
        "inputs": "{}",
        "tiers": agents.TIERS[1:],
    }
    return render(request, "copilot/agent.html", context, status=problem.status)


def _get_tool_choice(tools: list[str] | None) -> str:
    if tools is None:
        return "any"
    return "listed" if tools else "none"


def _parse_chosen_tools(request: HttpRequest) -> list[str] | None:
    """Return None for any tool and an empty list for none; names that were entered narrow “any”."""
    names, choice = request.POST.get("tools", "").split(), request.POST.get("tool_choice", "")
    if choice == "none":
        return []
    if choice == "listed" and not names:
        raise InvalidRequest("tools: list at least one tool, or choose no tools.")
    return names or None


def _parse_draft(request: HttpRequest) -> agents.AgentDraft:
    return agents.AgentDraft(
        name=request.POST.get("name", ""),
        description=request.POST.get("description", ""),
        instructions=request.POST.get("instructions", "").replace("\r\n", "\n"),
        tier=request.POST.get("tier", ""),
        tools=_parse_chosen_tools(request),
        inputs_schema=_parse_json_field(request, "inputs_schema"),
    )


def _build_changes(draft: agents.AgentDraft) -> agents.AgentVersionChanges:
    return {
        "name": draft.name,
        "description": draft.description,
        "instructions": draft.instructions,
        "tier": draft.tier,
        "tools": draft.tools,
        "inputs_schema": draft.inputs_schema,
    }


def _parse_json_field(request: HttpRequest, name: str) -> dict[str, JSON]:
    try:
        value = json.loads(request.POST.get(name, "").strip() or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name}: this is not a JSON object.")
    return value
