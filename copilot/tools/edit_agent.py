"""Changes an agent: each edit is a new version (A27.2)."""

from __future__ import annotations

from pydantic import Field, JsonValue

from copilot import presets
from copilot.bridge import in_thread
from copilot.context import TurnContext
from copilot.errors import Refused
from copilot.events import JSON
from copilot.models import AgentVersion
from copilot.tools import agents
from copilot.tools.base import Arguments, Invocation, Tool, ToolOutput, guard_act, prose


class EditAgent(Arguments):
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

    def changes(self) -> presets.Changes:
        """What was given; what was left out stays."""
        given: presets.Changes = {}
        given.update(self.model_dump(include=self.model_fields_set - {"agent_id", "expected_version"}))  # type: ignore[typeddict-item]
        return given


async def edit_agent(arguments: EditAgent, invocation: Invocation) -> ToolOutput:
    try:
        return agents.saved(await in_thread(_edit, invocation.context, arguments))
    except Refused as problem:
        return agents.refused(problem)


def _edit(context: TurnContext, arguments: EditAgent) -> AgentVersion:
    agents.check_guide(context)
    agent = agents.meant(context, arguments.agent_id)
    return presets.edit(context.user_id, agent.pk, arguments.expected_version, arguments.changes())


def _asks(arguments: EditAgent, context: TurnContext) -> str:
    """Where an agent is built, changing it is what the user came for (A32)."""
    return "" if agents.place_of(context).bound_to is not None else "This changes an agent of yours."


def _pins(arguments: EditAgent, context: TurnContext) -> dict[str, JSON]:
    agent = agents.meant(context, arguments.agent_id)
    return {"arguments": {"agent_id": str(agent.pk)}, "version": agent.version}


TOOL = Tool(
    name="edit_agent",
    arguments=EditAgent,
    run=edit_agent,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=30,
    exclusive=True,
    asks=_asks,
    pins=_pins,
    guard=guard_act("Allow changing this agent?"),
)
