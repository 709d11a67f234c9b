"""Shows the model which files the workspace holds (A22.1)."""

from __future__ import annotations

from pydantic import Field

from copilot.bridge import in_thread
from copilot.events import JSON
from copilot.models import WorkspaceFile
from copilot.tools import scans
from copilot.tools.base import Arguments, Invocation, Tool, ToolOutput, prose
from copilot.tools.scope import session_scope
from copilot.workspace import files


class ListFiles(Arguments):
    prefix: str = Field(default="", max_length=255, description="Only names that begin so.")
    limit: int = Field(default=50, ge=1, le=files.PAGE_FILES)
    cursor: int = Field(default=0, ge=0, le=files.MAX_OFFSET, description="`next_cursor` of the last answer.")


async def list_files(arguments: ListFiles, invocation: Invocation) -> ToolOutput:
    page = await in_thread(
        files.page,
        invocation.context.user_id,
        session_id=session_scope(invocation.context),
        prefix=arguments.prefix,
        limit=arguments.limit,
        offset=arguments.cursor,
    )
    next_cursor = page.offset + len(page.items) if page.has_more else None
    return ToolOutput(value={"files": [_entry(file) for file in page.items], "next_cursor": next_cursor})


def _entry(file: WorkspaceFile) -> dict[str, JSON]:
    return {
        "file_id": str(file.id),
        "name": file.name,
        "type": file.mime,
        "size_bytes": file.size_bytes,
        "created_at": file.created_at.isoformat(timespec="seconds"),
        **scans.remark(file),
    }


TOOL = Tool(
    name="list_files",
    arguments=ListFiles,
    run=list_files,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=30,
    read_only=True,
    repeatable=True,
)
