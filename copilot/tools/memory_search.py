"""Lets the model look up what it remembers of the user (A25.1)."""

from __future__ import annotations

from pydantic import Field

from copilot import memories
from copilot.bridge import in_thread
from copilot.tools.base import Arguments, Invocation, Tool, ToolOutput, prose

MAX_QUERY = 500


class MemorySearch(Arguments):
    query: str = Field(min_length=1, max_length=MAX_QUERY, description="Words that the memory may contain.")
    limit: int = Field(default=memories.MAX_FOUND, ge=1, le=memories.MAX_FOUND)


async def memory_search(arguments: MemorySearch, invocation: Invocation) -> ToolOutput:
    owner_id = invocation.context.user_id
    found = await in_thread(memories.search, owner_id, arguments.query, limit=arguments.limit)
    return ToolOutput(
        value={
            "memories": [
                {"id": str(item.id), "text": item.text, "date": f"{item.remembered_at:%Y-%m-%d}"}
                for item in found
            ]
        },
        sources=memories.sources_of(found),
    )


TOOL = Tool(
    name="memory_search",
    arguments=MemorySearch,
    run=memory_search,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    read_only=True,
    repeatable=True,
    memory=True,
)
