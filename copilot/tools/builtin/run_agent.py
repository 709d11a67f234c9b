"""The `run_agent` tool: run an agent as a sub-session, or show what a run would do."""

from __future__ import annotations

from pydantic import Field, JsonValue

from config.core.db import run_in_thread
from config.core.errors import RequestRefused
from config.core.json_values import JSON
from copilot.agents import services as agents
from copilot.chat.provenance import list_session_sources
from copilot.chat.turn_context import TurnContext
from copilot.models import AgentVersion
from copilot.tools.base import (
    MAX_TOOL_WAIT_SECONDS,
    Tool,
    ToolArguments,
    ToolInvocation,
    ToolOutput,
    load_description,
)
from copilot.tools.builtin import agent_tools, sub_session_tools
from copilot.tools.builtin.sub_session_tools import SubSessionPrompt

MAX_UNAPPROVED_MICRODOLLARS = 100_000  # a run that may cost more needs approval
POLL_TOOL = "view_agent_output"


class RunAgent(ToolArguments):
    agent_id: str | None = Field(default=None, description="Known already in a builder's conversation.")
    inputs: dict[str, JsonValue] = Field(default={}, description="As the agent's schema asks for them.")
    dry_run: bool = Field(default=False, description="Check everything and run nothing.")
    wait_seconds: sub_session_tools.WaitSeconds = Field(
        default=0, description=sub_session_tools.WAIT_DESCRIPTION
    )


async def run_agent(arguments: RunAgent, invocation: ToolInvocation) -> ToolOutput:
    context = invocation.context
    try:
        version, request = await run_in_thread(_compose_prompt, context, arguments)
        if arguments.dry_run:
            return ToolOutput(value=_describe_dry_run(context, version, request))
        prompt = await run_in_thread(_start_run, context, version, request)
    except RequestRefused as problem:
        return agent_tools.report_refusal(problem)
    seconds = sub_session_tools.compute_wait_seconds(context, arguments.wait_seconds)
    outcome = await sub_session_tools.wait_for_outcome(invocation, prompt, seconds)
    report = await run_in_thread(sub_session_tools.build_report, context, prompt, outcome, poll=POLL_TOOL)
    report |= {"run_id": report.pop("session_id"), "version": version.number}
    return ToolOutput(
        value=report,
        success=outcome.status not in ("failed", "cancelled"),
        session_id=str(prompt.session_id),
        reported_turn_id=sub_session_tools.get_reported_turn_id(outcome),
        sources=await run_in_thread(list_session_sources, prompt.session_id),
    )


def _compose_prompt(context: TurnContext, arguments: RunAgent) -> tuple[AgentVersion, str]:
    agent = agent_tools.resolve_agent(context, arguments.agent_id)
    version = agents.get_version(context.user_id, agent.pk)
    return version, agents.build_run_prompt(version, arguments.inputs)


def _start_run(context: TurnContext, version: AgentVersion, request: str) -> SubSessionPrompt:
    return sub_session_tools.start_sub_session(
        context, request, permissions=context.permissions, agent_version=version, tier=version.tier
    )


def _describe_dry_run(context: TurnContext, version: AgentVersion, request: str) -> dict[str, JSON]:
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


def _estimate_cost(arguments: RunAgent, context: TurnContext) -> int:
    return 0 if arguments.dry_run else sub_session_tools.compute_budget(context)


def _approval_reason(arguments: RunAgent, context: TurnContext) -> str:
    expensive = _estimate_cost(arguments, context) > MAX_UNAPPROVED_MICRODOLLARS
    return "Running an agent counts toward your usage." if expensive else ""


def _pin_arguments(arguments: RunAgent, context: TurnContext) -> dict[str, JSON]:
    agent = agent_tools.resolve_agent(context, arguments.agent_id)
    return {"arguments": {"agent_id": str(agent.pk)}, "version": agent.version}


TOOL = Tool(
    name="run_agent",
    arguments=RunAgent,
    run=run_agent,
    description=load_description(__file__, longest=sub_session_tools.MAX_WAIT_SECONDS),
    returns_user_text=True,
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,
    sub_sessions=True,
    billable=True,
    approval_reason=_approval_reason,
    pins=_pin_arguments,
    estimate=_estimate_cost,
)
