"""The `memory_add` tool: remember a fact about the user across sessions."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import StringConstraints

from config.core.db import run_in_thread
from config.core.redaction import redact_secret_patterns
from copilot.chat.provenance import list_session_sources
from copilot.chat.turn_context import TurnContext
from copilot.memories import services as memories
from copilot.models import MemoryItem
from copilot.tools.base import Tool, ToolArguments, ToolInvocation, ToolOutput, guard_always, load_description


class MemoryAdd(ToolArguments):
    text: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=memories.MAX_MEMORY_CHARACTERS)
    ]


async def memory_add(arguments: MemoryAdd, invocation: ToolInvocation) -> ToolOutput:
    item = await run_in_thread(_add_memory, redact_secret_patterns(arguments.text), invocation.context)
    return ToolOutput(value={"id": str(item.id), "text": item.text})


def _add_memory(text: str, context: TurnContext) -> MemoryItem:
    sources = list_session_sources(UUID(context.session_id))
    return memories.add_memory(context.user_id, text, sources=sources)


TOOL = Tool(
    name="memory_add",
    arguments=MemoryAdd,
    run=memory_add,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    memory=True,
    guard=guard_always("Allow remembering this for later chats?"),
)
