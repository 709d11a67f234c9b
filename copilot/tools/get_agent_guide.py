"""Shows how agents are made; without it none may be written outside a builder's conversation (A27.3)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from copilot.tools.base import Arguments, Invocation, Tool, ToolOutput, prose

GUIDE = Path(__file__).parents[1] / "agent" / "prompts" / "agent_guide.md"


class GetAgentGuide(Arguments):
    pass


@cache
def guide() -> str:
    return GUIDE.read_text(encoding="utf-8").strip()


async def get_agent_guide(arguments: GetAgentGuide, invocation: Invocation) -> ToolOutput:
    return ToolOutput(value=guide())


TOOL = Tool(
    name="get_agent_guide",
    arguments=GetAgentGuide,
    run=get_agent_guide,
    returns_user_text=True,
    description=prose(__file__),
    timeout_seconds=10,
    read_only=True,
    repeatable=True,
)
