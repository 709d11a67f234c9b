"""Shared helpers of the tools for agents: find the agent, check that it may be written, and report refusals."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import msgspec
from django.conf import settings
from django.db.models import Max
from django.urls import reverse

from config.core.errors import NotFound, RequestRefused
from config.core.json_values import JSON
from copilot.agents import services as agents
from copilot.chat.turn_context import TurnContext
from copilot.models import Agent, AgentVersion, Message, Session
from copilot.tools.base import ToolError, ToolOutput

GUIDE_TOOL = "get_agent_guide"


@dataclass(frozen=True, kw_only=True)
class BuilderBinding:
    """The agent that this session builds, if it is a builder session."""

    bound_to: UUID | None


def get_builder_binding(context: TurnContext) -> BuilderBinding:
    return BuilderBinding(
        bound_to=Session.objects.values_list("built_agent_id", flat=True).get(pk=context.session_id)
    )


def resolve_agent(context: TurnContext, agent_id: str | None) -> Agent:
    """Return the agent of this id, or the one this session builds.

    An id of another agent is refused in a builder session only after that agent was found.
    """
    bound_to = get_builder_binding(context).bound_to
    if agent_id is None and bound_to is None:
        raise ToolError("missing_agent_id", "Say which agent, by its id. Find it with list_agents.")
    agent = _find_agent(context, str(bound_to) if agent_id is None else agent_id)
    if bound_to is not None and agent.pk != bound_to:
        raise ToolError(
            "builder_session_mismatch", "This conversation builds another agent, and touches only that one."
        )
    return agent


def _find_agent(context: TurnContext, agent_id: str) -> Agent:
    try:
        agent = agents.get_agent(context.user_id, UUID(agent_id))
    except (ValueError, NotFound):
        raise make_not_found_error() from None
    if not can_use_agent(context, agent):
        raise make_not_found_error()
    return agent


def can_use_agent(context: TurnContext, agent: Agent) -> bool:
    allowed = context.permissions.agents
    return allowed is None or str(agent.pk) in allowed


def make_not_found_error() -> ToolError:
    return ToolError("agent_not_found", "There is no such agent.")


def check_guide_was_read(context: TurnContext) -> None:
    """Refuse to write agents unless the guide is in the model's context."""
    if get_builder_binding(context).bound_to is not None:
        return  # the system prompt of a builder session contains the guide
    rows = Message.objects.filter(session=UUID(context.session_id), hidden="")
    last_summary = rows.filter(kind="summary").aggregate(last=Max("sequence"))["last"] or 0
    read = rows.filter(
        kind="tool_result", data__tool=GUIDE_TOOL, data__success=True, sequence__gt=last_summary
    )
    if not read.exists():
        raise ToolError("guide_required", f"Read the guide first: call {GUIDE_TOOL}, then call this again.")


def report_saved_version(version: AgentVersion) -> ToolOutput:
    return ToolOutput(
        value={
            "agent_id": str(version.agent_id),
            "version": version.number,
            "link": settings.SITE_URL + reverse("agent", args=[version.agent_id]),
        }
    )


def report_refusal(problem: RequestRefused) -> ToolOutput:
    """Report everything that is wrong, so that one more attempt is enough."""
    if isinstance(problem, NotFound):
        raise make_not_found_error() from None
    error: dict[str, JSON] = {"code": problem.code, "message": problem.message}
    for name, value in problem.details.items():
        error[name] = msgspec.to_builtins(value)
    return ToolOutput(value={"error": error}, success=False)
