"""Saves a way of working as an agent of the user (A27.2)."""

from __future__ import annotations

from pydantic import Field, JsonValue

from copilot import presets
from copilot.bridge import in_thread
from copilot.errors import Refused
from copilot.tools import agents
from copilot.tools.base import Arguments, Invocation, Tool, ToolOutput, guard_act, prose


class CreateAgent(Arguments):
    name: str
    description: str = ""
    instructions: str
    tier: str = Field(default="", description="standard, advanced or small.")
    tools: list[str] | None = Field(default=None, description="Names; left out, it may use any.")
    inputs_schema: dict[str, JsonValue] | None = Field(
        default=None, description="A JSON Schema of type object."
    )


async def create_agent(arguments: CreateAgent, invocation: Invocation) -> ToolOutput:
    context = invocation.context
    await in_thread(agents.check_guide, context)
    try:
        version = await in_thread(presets.create, context.user_id, presets.Draft(**arguments.model_dump()))
    except Refused as problem:
        return agents.refused(problem)
    return agents.saved(version)


TOOL = Tool(
    name="create_agent",
    arguments=CreateAgent,
    run=create_agent,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=30,
    exclusive=True,
    guard=guard_act("Allow saving this agent?"),
)
