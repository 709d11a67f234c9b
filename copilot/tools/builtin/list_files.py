"""The `list_files` tool: list the files of the workspace."""

from __future__ import annotations

from pydantic import Field

from config.core.db import run_in_thread
from config.core.json_values import JSON
from copilot.files import services as files
from copilot.models import WorkspaceFile
from copilot.tools import results
from copilot.tools.base import (
    Tool,
    ToolArguments,
    ToolInvocation,
    ToolOutput,
    get_file_scope,
    load_description,
)


class ListFiles(ToolArguments):
    prefix: str = Field(default="", max_length=255, description="Only names that begin so.")
    limit: int = Field(default=50, ge=1, le=files.MAX_PAGE_FILES)
    cursor: int = Field(default=0, ge=0, le=files.MAX_OFFSET, description="`next_cursor` of the last answer.")


async def list_files(arguments: ListFiles, invocation: ToolInvocation) -> ToolOutput:
    page = await run_in_thread(
        files.get_file_page,
        invocation.context.user_id,
        session_id=get_file_scope(invocation.context),
        prefix=arguments.prefix,
        limit=arguments.limit,
        offset=arguments.cursor,
    )
    next_cursor = page.offset + len(page.items) if page.has_more else None
    return ToolOutput(
        value={"files": [_describe_file(file) for file in page.items], "next_cursor": next_cursor}
    )


def _describe_file(file: WorkspaceFile) -> dict[str, JSON]:
    return {
        "file_id": str(file.id),
        "name": file.name,
        "type": file.mime,
        "size_bytes": file.size_bytes,
        "created_at": file.created_at.isoformat(timespec="seconds"),
        **results.describe_scan(file),
    }


TOOL = Tool(
    name="list_files",
    arguments=ListFiles,
    run=list_files,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=30,
    read_only=True,
    repeatable=True,
)
