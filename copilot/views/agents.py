"""Pages of agents: the list, one agent to edit and run, and the way to the chat that builds it (A27)."""

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

from copilot import dispatch, presets, schemas, sessions, words
from copilot.commands import SendMessage
from copilot.errors import InvalidRequest, Refused
from copilot.events import JSON
from copilot.models import AgentVersion
from copilot.permissions import UNRESTRICTED
from copilot.views.acting import done, found, user_of

Form = dict[str, object]


@login_required
@never_cache
@require_GET
def agents(request: HttpRequest) -> HttpResponse:
    owner_id = user_of(request).pk
    after = request.GET.get("after")
    try:
        listed = presets.listed(owner_id, after=UUID(after) if after else None, limit=presets.PAGE_AGENTS + 1)
    except (ValueError, InvalidRequest) as problem:
        raise Http404 from problem
    page = listed[: presets.PAGE_AGENTS]
    more = page[-1].pk if len(listed) > presets.PAGE_AGENTS else None
    return render(request, "copilot/agents.html", {"agents": page, "more": more})


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def new_agent(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return render(
            request, "copilot/agent.html", {"form": {"inputs_schema": "{}"}, "tiers": presets.TIERS[1:]}
        )
    try:
        made = presets.create(user_of(request).pk, _draft(request))
    except Refused as problem:
        return _refused(request, problem, agent_id=None)
    messages.success(request, _("The agent was made."))
    return redirect("agent", made.agent_id)


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def agent(request: HttpRequest, agent_id: UUID) -> HttpResponse:
    owner_id = user_of(request).pk
    with found():
        version = presets.version(owner_id, agent_id)
    if request.method == "GET":
        return _painted(request, version)
    try:
        expected = int(request.POST.get("expected_version", "0") or 0)
        presets.edit(owner_id, agent_id, expected, _changes(_draft(request)))
    except (Refused, ValueError) as problem:
        refusal = problem if isinstance(problem, Refused) else InvalidRequest("Not a version.")
        return _refused(request, refusal, agent_id=agent_id)
    messages.success(request, _("Saved as a new version."))
    return redirect("agent", agent_id)


@login_required
@require_POST
def run(request: HttpRequest, agent_id: UUID) -> HttpResponse:
    """A run is a chat of its own, which is where this leads."""
    owner_id = user_of(request).pk
    with found():
        version = presets.version(owner_id, agent_id)
    try:
        text = presets.request(version, _object(request, "inputs"))
        with sessions.begun(owner_id, version.name, agent_version=version) as session:
            dispatch.submit(
                SendMessage(
                    session_id=session.pk,
                    user_id=owner_id,
                    text=text,
                    tier=version.tier,
                    origin="web",
                    permissions=UNRESTRICTED,
                )
            )
    except Refused as problem:
        messages.error(request, words.of_refusal(problem))
        return _painted(request, version, status=problem.status, inputs=request.POST.get("inputs", ""))
    return redirect("chat_session", session.pk)


@login_required
@require_POST
def build(request: HttpRequest, agent_id: UUID) -> HttpResponse:
    with found():
        agent = presets.get(user_of(request).pk, agent_id)
    return redirect("chat_session", sessions.builder(agent.owner_id, agent).pk)


@login_required
@require_POST
def delete_agent(request: HttpRequest, agent_id: UUID) -> HttpResponse:
    return done(
        request,
        lambda: presets.delete(user_of(request).pk, agent_id),
        _("The agent was deleted."),
        then="agents",
    )


def _painted(
    request: HttpRequest, version: AgentVersion, *, status: int = 200, inputs: str = "{}"
) -> HttpResponse:
    form: Form = {
        "name": version.name,
        "description": version.description,
        "instructions": version.instructions,
        "tier": version.tier,
        "tool_choice": _tool_choice(version.tools),
        "tools": "\n".join(version.tools or ()),
        "inputs_schema": schemas.written(version.inputs_schema),
    }
    context = {
        "agent_id": version.agent_id,
        "version": version.number,
        "form": form,
        "inputs": inputs,
        "tiers": presets.TIERS[1:],
    }
    return render(request, "copilot/agent.html", context, status=status)


def _refused(request: HttpRequest, problem: Refused, *, agent_id: UUID | None) -> HttpResponse:
    """What was written stays in the form, with everything that is wrong above it."""
    details = problem.details.get("details")
    for said in details["errors"] if isinstance(details, dict) else [words.of_refusal(problem)]:
        messages.error(request, said)
    context = {
        "agent_id": agent_id,
        "version": request.POST.get("expected_version", ""),
        "form": request.POST,
        "inputs": "{}",
        "tiers": presets.TIERS[1:],
    }
    return render(request, "copilot/agent.html", context, status=problem.status)


def _tool_choice(tools: list[str] | None) -> str:
    if tools is None:
        return "any"
    return "listed" if tools else "none"


def _chosen_tools(request: HttpRequest) -> list[str] | None:
    """Return None for any tool and an empty list for none; a list that was written narrows “any”."""
    names, choice = request.POST.get("tools", "").split(), request.POST.get("tool_choice", "")
    if choice == "none":
        return []
    if choice == "listed" and not names:
        raise InvalidRequest("tools: name at least one, or choose that it uses no tools.")
    return names or None


def _draft(request: HttpRequest) -> presets.Draft:
    return presets.Draft(
        name=request.POST.get("name", ""),
        description=request.POST.get("description", ""),
        instructions=request.POST.get("instructions", "").replace("\r\n", "\n"),
        tier=request.POST.get("tier", ""),
        tools=_chosen_tools(request),
        inputs_schema=_object(request, "inputs_schema"),
    )


def _changes(draft: presets.Draft) -> presets.Changes:
    return {
        "name": draft.name,
        "description": draft.description,
        "instructions": draft.instructions,
        "tier": draft.tier,
        "tools": draft.tools,
        "inputs_schema": draft.inputs_schema,
    }


def _object(request: HttpRequest, name: str) -> dict[str, JSON]:
    try:
        value = json.loads(request.POST.get(name, "").strip() or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name}: this is not a JSON object.")
    return value
