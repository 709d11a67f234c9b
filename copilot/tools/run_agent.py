"""Runs an agent of the user as a sub-session, or shows what a run would be told (A27.5)."""

from __future__ import annotations

from pydantic import Field, JsonValue

from copilot import presets
from copilot.bridge import in_thread
from copilot.context import TurnContext
from copilot.errors import Refused
from copilot.events import JSON
from copilot.models import AgentVersion
from copilot.provenance import sources_of_session
from copilot.tools import agents, children
from copilot.tools.base import MAX_TOOL_WAIT_SECONDS, Arguments, Invocation, Tool, ToolOutput, prose
from copilot.tools.children import Prompt

UNASKED_MICRODOLLARS = 100_000  # what may be spent without asking first (A32)
POLL = "view_agent_output"


class RunAgent(Arguments):
    agent_id: str | None = Field(default=None, description="Known already in a builder's conversation.")
    inputs: dict[str, JsonValue] = Field(default={}, description="As the agent's schema asks for them.")
    dry_run: bool = Field(default=False, description="Check everything and run nothing.")
    wait_seconds: children.Wait = Field(default=0, description=children.WAITING)


async def run_agent(arguments: RunAgent, invocation: Invocation) -> ToolOutput:
    context = invocation.context
    try:
        version, request = await in_thread(_composed, context, arguments)
        if arguments.dry_run:
            return ToolOutput(value=_shown(context, version, request))
        prompt = await in_thread(_begin, context, version, request)
    except Refused as problem:
        return agents.refused(problem)
    seconds = children.waiting_seconds(context, arguments.wait_seconds)
    outcome = await children.outcome_of(context, prompt, seconds)
    told = await in_thread(children.report, context, prompt, outcome, poll=POLL)
    told |= {"run_id": told.pop("session_id"), "version": version.number}
    return ToolOutput(
        value=told,
        success=outcome.status not in ("failed", "cancelled"),
        session_id=str(prompt.session_id),
        sources=await in_thread(sources_of_session, prompt.session_id),
    )


def _composed(context: TurnContext, arguments: RunAgent) -> tuple[AgentVersion, str]:
    agent = agents.meant(context, arguments.agent_id)
    version = presets.version(context.user_id, agent.pk)
    return version, presets.request(version, arguments.inputs)


def _begin(context: TurnContext, version: AgentVersion, request: str) -> Prompt:
    return children.begin(
        context, request, permissions=context.permissions, agent_version=version, tier=version.tier
    )


def _shown(context: TurnContext, version: AgentVersion, request: str) -> dict[str, JSON]:
    """The request as it would go out, without a model being asked."""
    allowed = [name for name in version.tools or () if context.permissions.allows_tool(name)]
    return {
        "dry_run": True,
        "agent_id": str(version.agent_id),
        "version": version.number,
        "tier": version.tier or "standard",
        "instructions": version.instructions,
        "tools": None if version.tools is None else [*allowed],
        "message": request,
    }


def _estimate(arguments: RunAgent, context: TurnContext) -> int:
    return 0 if arguments.dry_run else children.budget_for(context)


def _asks(arguments: RunAgent, context: TurnContext) -> str:
    expensive = _estimate(arguments, context) > UNASKED_MICRODOLLARS
    return "A run of an agent costs money of its own." if expensive else ""


def _pins(arguments: RunAgent, context: TurnContext) -> dict[str, JSON]:
    agent = agents.meant(context, arguments.agent_id)
    return {"arguments": {"agent_id": str(agent.pk)}, "version": agent.version}


TOOL = Tool(
    name="run_agent",
    arguments=RunAgent,
    run=run_agent,
    description=prose(__file__, longest=children.LONGEST_SECONDS),
    returns_user_text=True,
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,
    sub_sessions=True,
    billable=True,
    asks=_asks,
    pins=_pins,
    estimate=_estimate,
)
