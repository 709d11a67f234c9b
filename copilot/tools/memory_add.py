"""Lets the model remember something of the user for later conversations (A25.1)."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import StringConstraints

from copilot import memories
from copilot.bridge import in_thread
from copilot.context import TurnContext
from copilot.models import MemoryItem
from copilot.provenance import sources_of_session
from copilot.redaction import redact_shapes
from copilot.tools.base import Arguments, Invocation, Tool, ToolOutput, guard_act, prose


class MemoryAdd(Arguments):
    text: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=memories.MAX_CHARACTERS)
    ]


async def memory_add(arguments: MemoryAdd, invocation: Invocation) -> ToolOutput:
    item = await in_thread(_add, redact_shapes(arguments.text), invocation.context)
    return ToolOutput(value={"id": str(item.id), "text": item.text})


def _add(text: str, context: TurnContext) -> MemoryItem:
    sources = sources_of_session(UUID(context.session_id))
    return memories.add(context.user_id, text, sources=sources)


TOOL = Tool(
    name="memory_add",
    arguments=MemoryAdd,
    run=memory_add,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    memory=True,
    guard=guard_act("Allow remembering this for later chats?"),
)
