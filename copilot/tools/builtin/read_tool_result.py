"""The `read_tool_result` tool: read the parts of an output or a long message that the model was not shown."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from pydantic import Field

from config.core.db import run_in_thread
from copilot.files import services as files
from copilot.tools.base import Tool, ToolArguments, ToolInvocation, ToolOutput, load_description

MAX_CHARACTERS = min(
    50_000, settings.TOOL_OUTPUT_CHARACTERS - 1_000
)  # below the limit, so that a part is not truncated again


class ReadToolResult(ToolArguments):
    call_id: str = Field(min_length=1, max_length=128)
    offset: int = Field(default=0, ge=0, description="The first character to read.")
    length: int = Field(default=MAX_CHARACTERS, ge=1, le=MAX_CHARACTERS)


async def read_tool_result(arguments: ReadToolResult, invocation: ToolInvocation) -> ToolOutput:
    context = invocation.context
    text = await run_in_thread(
        files.read_tool_output, context.user_id, UUID(context.session_id), arguments.call_id
    )
    part = text[arguments.offset : arguments.offset + arguments.length]
    end = arguments.offset + len(part)
    where = f"characters {arguments.offset:,} to {end:,}" if part else "nothing there"
    sources = await run_in_thread(
        files.list_output_sources, context.user_id, UUID(context.session_id), arguments.call_id
    )
    return ToolOutput(value=f"[{where} of {len(text):,}]\n{part}", sources=sources)


TOOL = Tool(
    name="read_tool_result",
    arguments=ReadToolResult,
    run=read_tool_result,
    description=load_description(__file__, most=MAX_CHARACTERS),
    returns_user_text=True,
    timeout_seconds=30,
    read_only=True,
    repeatable=True,
)
