"""The `memory_search` tool: search the memories of the user."""

from __future__ import annotations

from pydantic import Field

from config.core.db import run_in_thread
from copilot.memories import services as memories
from copilot.tools.base import Tool, ToolArguments, ToolInvocation, ToolOutput, load_description

MAX_QUERY_CHARACTERS = 500


class MemorySearch(ToolArguments):
    query: str = Field(
        min_length=1, max_length=MAX_QUERY_CHARACTERS, description="Words that the memory may contain."
    )
    limit: int = Field(default=memories.MAX_SEARCH_RESULTS, ge=1, le=memories.MAX_SEARCH_RESULTS)


async def memory_search(arguments: MemorySearch, invocation: ToolInvocation) -> ToolOutput:
    owner_id = invocation.context.user_id
    found = await run_in_thread(memories.search_memories, owner_id, arguments.query, limit=arguments.limit)
    return ToolOutput(
        value={
            "memories": [
                {"id": str(item.id), "text": item.text, "date": f"{item.remembered_at:%Y-%m-%d}"}
                for item in found
            ]
        },
        sources=memories.list_sources(found),
    )


TOOL = Tool(
    name="memory_search",
    arguments=MemorySearch,
    run=memory_search,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    read_only=True,
    repeatable=True,
    memory=True,
)
