"""Lists the user's agents (A27.2)."""

from __future__ import annotations

from copilot import presets, schemas
from copilot.bridge import in_thread
from copilot.context import TurnContext
from copilot.events import JSON
from copilot.models import AgentVersion
from copilot.tools import agents
from copilot.tools.base import Arguments, Invocation, Tool, ToolOutput, prose


class ListAgents(Arguments):
    pass


async def list_agents(arguments: ListAgents, invocation: Invocation) -> ToolOutput:
    return ToolOutput(value=await in_thread(_listed, invocation.context))


def _listed(context: TurnContext) -> list[JSON]:
    found = {agent.pk: agent for agent in presets.listed(context.user_id) if agents.may_use(context, agent)}
    newest = AgentVersion.objects.filter(agent__in=found).order_by("agent_id", "-number").distinct("agent_id")
    schema = {version.agent_id: version.inputs_schema for version in newest}
    return [
        {
            "agent_id": str(pk),
            "name": agent.name,
            "description": agent.description,
            "version": agent.version,
            "inputs": [*schemas.named(schema[pk])],
        }
        for pk, agent in found.items()
    ]


TOOL = Tool(
    name="list_agents",
    arguments=ListAgents,
    run=list_agents,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    read_only=True,
    repeatable=True,
)
