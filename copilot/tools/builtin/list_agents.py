"""The `list_agents` tool: list the user's agents."""

from __future__ import annotations

from config.core.db import run_in_thread
from config.core.json_values import JSON
from copilot.agents import services as agents
from copilot.chat.turn_context import TurnContext
from copilot.models import AgentVersion
from copilot.tools import json_schema
from copilot.tools.base import Tool, ToolArguments, ToolInvocation, ToolOutput, load_description
from copilot.tools.builtin import agent_tools


class ListAgents(ToolArguments):
    pass


async def list_agents(arguments: ListAgents, invocation: ToolInvocation) -> ToolOutput:
    return ToolOutput(value=await run_in_thread(_list_agents, invocation.context))


def _list_agents(context: TurnContext) -> list[JSON]:
    found = {
        agent.pk: agent
        for agent in agents.list_agents(context.user_id)
        if agent_tools.can_use_agent(context, agent)
    }
    newest = AgentVersion.objects.filter(agent__in=found).order_by("agent_id", "-number").distinct("agent_id")
    schema = {version.agent_id: version.inputs_schema for version in newest}
    return [
        {
            "agent_id": str(pk),
            "name": agent.name,
            "description": agent.description,
            "version": agent.version,
            "inputs": [*json_schema.list_property_names(schema[pk])],
        }
        for pk, agent in found.items()
    ]


TOOL = Tool(
    name="list_agents",
    arguments=ListAgents,
    run=list_agents,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    read_only=True,
    repeatable=True,
)
