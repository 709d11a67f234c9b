"""Lets the model forget something of the user (A25.1)."""

from __future__ import annotations

from uuid import UUID

from pydantic import Field

from copilot import memories
from copilot.bridge import in_thread
from copilot.tools.base import Arguments, Invocation, Tool, ToolOutput, prose


class MemoryForget(Arguments):
    id: UUID = Field(description="As memory_search or memory_add gave it.")


async def memory_forget(arguments: MemoryForget, invocation: Invocation) -> ToolOutput:
    await in_thread(memories.forget, invocation.context.user_id, arguments.id)
    return ToolOutput(value="Forgotten.")


TOOL = Tool(
    name="memory_forget",
    arguments=MemoryForget,
    run=memory_forget,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    memory=True,
)
