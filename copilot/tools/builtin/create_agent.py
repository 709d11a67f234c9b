"""The `create_agent` tool: save instructions, model and tools as an agent of the user."""

from __future__ import annotations

from pydantic import Field, JsonValue

from config.core.db import run_in_thread
from config.core.errors import RequestRefused
from copilot.agents import services as agents
from copilot.tools.base import Tool, ToolArguments, ToolInvocation, ToolOutput, guard_always, load_description
from copilot.tools.builtin import agent_tools


class CreateAgent(ToolArguments):
    name: str
    description: str = ""
    instructions: str
    tier: str = Field(default="", description="standard, advanced or small.")
    tools: list[str] | None = Field(default=None, description="Names; left out, it may use any.")
    inputs_schema: dict[str, JsonValue] | None = Field(
        default=None, description="A JSON Schema of type object."
    )


async def create_agent(arguments: CreateAgent, invocation: ToolInvocation) -> ToolOutput:
    context = invocation.context
    await run_in_thread(agent_tools.check_guide_was_read, context)
    try:
        version = await run_in_thread(
            agents.create_agent, context.user_id, agents.AgentDraft(**arguments.model_dump())
        )
    except RequestRefused as problem:
        return agent_tools.report_refusal(problem)
    return agent_tools.report_saved_version(version)


TOOL = Tool(
    name="create_agent",
    arguments=CreateAgent,
    run=create_agent,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=30,
    exclusive=True,
    guard=guard_always("Allow saving this agent?"),
)
