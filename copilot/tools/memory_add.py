"""Lets the model remember something of the user for later conversations (A25.1)."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

from copilot import memories
from copilot.bridge import in_thread
from copilot.redaction import redact_shapes
from copilot.tools.base import Arguments, Invocation, Tool, ToolOutput, prose


class MemoryAdd(Arguments):
    text: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=memories.MAX_CHARACTERS)
    ]


async def memory_add(arguments: MemoryAdd, invocation: Invocation) -> ToolOutput:
    item = await in_thread(memories.add, invocation.context.user_id, redact_shapes(arguments.text))
    return ToolOutput(value={"id": str(item.id), "text": item.text})


TOOL = Tool(
    name="memory_add",
    arguments=MemoryAdd,
    run=memory_add,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    memory=True,
)
