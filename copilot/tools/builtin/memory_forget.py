"""The `memory_forget` tool: forget a fact about the user."""

from __future__ import annotations

from uuid import UUID

from pydantic import Field

from config.core.db import run_in_thread
from copilot.memories import services as memories
from copilot.tools.base import Tool, ToolArguments, ToolInvocation, ToolOutput, load_description


class MemoryForget(ToolArguments):
    id: UUID = Field(description="As memory_search or memory_add gave it.")


async def memory_forget(arguments: MemoryForget, invocation: ToolInvocation) -> ToolOutput:
    await run_in_thread(memories.forget_memory, invocation.context.user_id, arguments.id)
    return ToolOutput(value="Forgotten.")


TOOL = Tool(
    name="memory_forget",
    arguments=MemoryForget,
    run=memory_forget,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    memory=True,
)
