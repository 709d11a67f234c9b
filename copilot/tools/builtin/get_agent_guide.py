"""The `get_agent_guide` tool: show how agents are written, which the model must read before writing one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from copilot.tools.base import Tool, ToolArguments, ToolInvocation, ToolOutput, load_description

GUIDE_PATH = Path(__file__).parents[2] / "agent" / "prompts" / "agent_guide.md"


class GetAgentGuide(ToolArguments):
    pass


@cache
def read_guide() -> str:
    return GUIDE_PATH.read_text(encoding="utf-8").strip()


async def get_agent_guide(arguments: GetAgentGuide, invocation: ToolInvocation) -> ToolOutput:
    return ToolOutput(value=read_guide())


TOOL = Tool(
    name="get_agent_guide",
    arguments=GetAgentGuide,
    run=get_agent_guide,
    returns_user_text=True,
    description=load_description(__file__),
    timeout_seconds=10,
    read_only=True,
    repeatable=True,
)
