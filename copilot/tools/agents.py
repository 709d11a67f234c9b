"""What the tools about agents share: which agent is meant, whether one may be written, and how no is said (A27)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import msgspec
from django.conf import settings
from django.db.models import Max
from django.urls import reverse

from copilot import presets
from copilot.context import TurnContext
from copilot.errors import NotFound, Refused
from copilot.events import JSON
from copilot.models import Agent, AgentVersion, Message, Session
from copilot.tools.base import ToolFailed, ToolOutput

GUIDE_TOOL = "get_agent_guide"


@dataclass(frozen=True, kw_only=True)
class Place:
    """The conversation an agent is written in; a builder's is bound to one."""

    bound_to: UUID | None


def place_of(context: TurnContext) -> Place:
    return Place(bound_to=Session.objects.values_list("builds_id", flat=True).get(pk=context.session_id))


def meant(context: TurnContext, agent_id: str | None) -> Agent:
    """The agent of this id, or the one this conversation builds; a mismatch is found after it is (A27.6)."""
    bound_to = place_of(context).bound_to
    if agent_id is None and bound_to is None:
        raise ToolFailed("missing_agent_id", "Say which agent, by its id. Find it with list_agents.")
    agent = _found(context, str(bound_to) if agent_id is None else agent_id)
    if bound_to is not None and agent.pk != bound_to:
        raise ToolFailed(
            "builder_session_mismatch", "This conversation builds another agent, and touches only that one."
        )
    return agent


def _found(context: TurnContext, agent_id: str) -> Agent:
    try:
        agent = presets.get(context.user_id, UUID(agent_id))
    except (ValueError, NotFound):
        raise no_such() from None
    if not may_use(context, agent):
        raise no_such()
    return agent


def may_use(context: TurnContext, agent: Agent) -> bool:
    allowed = context.permissions.agents
    return allowed is None or str(agent.pk) in allowed


def no_such() -> ToolFailed:
    return ToolFailed("agent_not_found", "There is no such agent.")


def check_guide(context: TurnContext) -> None:
    """Who writes agents has read the guide, and still has it in mind (A27.3)."""
    if place_of(context).bound_to is not None:
        return  # it stands in the system text there
    rows = Message.objects.filter(session=UUID(context.session_id), hidden="")
    forgotten = rows.filter(kind="summary").aggregate(last=Max("sequence"))["last"] or 0
    read = rows.filter(kind="tool_result", data__tool=GUIDE_TOOL, data__success=True, sequence__gt=forgotten)
    if not read.exists():
        raise ToolFailed("guide_required", f"Read the guide first: call {GUIDE_TOOL}, then call this again.")


def saved(version: AgentVersion) -> ToolOutput:
    return ToolOutput(
        value={
            "agent_id": str(version.agent_id),
            "version": version.number,
            "link": settings.SITE_URL + reverse("agent", args=[version.agent_id]),
        }
    )


def refused(problem: Refused) -> ToolOutput:
    """With everything that is wrong, so that one more try is enough."""
    if isinstance(problem, NotFound):
        raise no_such() from None
    told: dict[str, JSON] = {"code": problem.code, "message": problem.message}
    for name, value in problem.details.items():
        told[name] = msgspec.to_builtins(value)
    return ToolOutput(value={"error": told}, success=False)
