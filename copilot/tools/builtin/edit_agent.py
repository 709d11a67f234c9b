"""The `edit_agent` tool: change an agent; each edit is a new version."""

from __future__ import annotations

from pydantic import Field, JsonValue

from config.core.db import run_in_thread
from config.core.errors import RequestRefused
from config.core.json_values import JSON
from copilot.agents import services as agents
from copilot.chat.turn_context import TurnContext
from copilot.models import AgentVersion
from copilot.tools.base import Tool, ToolArguments, ToolInvocation, ToolOutput, guard_always, load_description
from copilot.tools.builtin import agent_tools


class EditAgent(ToolArguments):
    agent_id: str | None = Field(default=None, description="Known already in a builder's conversation.")
    expected_version: int = Field(ge=1, description="The version that the change starts from.")
    name: str = ""
    description: str = ""
    instructions: str = ""
    tier: str = Field(default="", description="standard, advanced or small.")
    tools: list[str] | None = Field(default=None, description="Names; null for any.")
    inputs_schema: dict[str, JsonValue] | None = Field(
        default=None, description="A JSON Schema of type object."
    )

    def get_changes(self) -> agents.AgentVersionChanges:
        changes: agents.AgentVersionChanges = {}
        changes.update(self.model_dump(include=self.model_fields_set - {"agent_id", "expected_version"}))  # type: ignore[typeddict-item]
        return changes


async def edit_agent(arguments: EditAgent, invocation: ToolInvocation) -> ToolOutput:
    try:
        return agent_tools.report_saved_version(
            await run_in_thread(_edit_agent, invocation.context, arguments)
        )
    except RequestRefused as problem:
        return agent_tools.report_refusal(problem)


def _edit_agent(context: TurnContext, arguments: EditAgent) -> AgentVersion:
    agent_tools.check_guide_was_read(context)
    agent = agent_tools.resolve_agent(context, arguments.agent_id)
    return agents.edit_agent(context.user_id, agent.pk, arguments.expected_version, arguments.get_changes())


def _approval_reason(arguments: EditAgent, context: TurnContext) -> str:
    """Ask outside builder sessions only; inside one, changing the agent is what the user came for."""
    return (
        ""
        if agent_tools.get_builder_binding(context).bound_to is not None
        else "This changes one of your agents."
    )


def _pin_arguments(arguments: EditAgent, context: TurnContext) -> dict[str, JSON]:
    agent = agent_tools.resolve_agent(context, arguments.agent_id)
    return {"arguments": {"agent_id": str(agent.pk)}, "version": agent.version}


TOOL = Tool(
    name="edit_agent",
    arguments=EditAgent,
    run=edit_agent,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=30,
    exclusive=True,
    approval_reason=_approval_reason,
    pins=_pin_arguments,
    guard=guard_always("Allow changing this agent?"),
)
