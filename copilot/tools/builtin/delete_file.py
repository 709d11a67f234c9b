"""The `delete_file` tool: move a workspace file to the trash after the user approved it."""

from __future__ import annotations

from django.conf import settings
from pydantic import Field

from config.core.db import run_in_thread
from config.core.errors import NotFound
from config.core.json_values import JSON
from copilot.chat.turn_context import TurnContext
from copilot.files import services as files
from copilot.models import WorkspaceFile
from copilot.sharing import services as sharing
from copilot.tools.base import (
    Tool,
    ToolArguments,
    ToolInvocation,
    ToolOutput,
    get_file_scope,
    load_description,
)

SHARED_WARNING = "This file has a public link. Deleting the file turns the link off for good."


class DeleteFile(ToolArguments):
    file: str = Field(min_length=1, max_length=500, description="A file id, a workspace:// URI, or a name.")


async def delete_file(arguments: DeleteFile, invocation: ToolInvocation) -> ToolOutput:
    file = await run_in_thread(_trash_file, arguments, invocation)
    return ToolOutput(
        value=f"{file.name} is in the trash; the user can restore it for {settings.WORKSPACE_TRASH_DAYS} days."
    )


def _trash_file(arguments: DeleteFile, invocation: ToolInvocation) -> WorkspaceFile:
    context = invocation.context
    file = files.find_file(context.user_id, arguments.file, session_id=get_file_scope(context))
    files.trash_file(context.user_id, file.id)
    return file


def _approval_reason(arguments: DeleteFile, context: TurnContext) -> str:
    try:
        file = files.find_file(context.user_id, arguments.file, session_id=get_file_scope(context))
    except NotFound:
        return ""  # the call itself will say so
    return SHARED_WARNING if sharing.find_public_files([file.pk]) else ""


def _pin_arguments(arguments: DeleteFile, context: TurnContext) -> dict[str, JSON]:
    file = files.find_file(context.user_id, arguments.file, session_id=get_file_scope(context))
    return {"arguments": {"file": str(file.id)}, "sha256": file.sha256}


TOOL = Tool(
    name="delete_file",
    arguments=DeleteFile,
    run=delete_file,
    pins=_pin_arguments,
    description=load_description(__file__, days=settings.WORKSPACE_TRASH_DAYS),
    returns_user_text=True,
    timeout_seconds=30,
    approval="ask",
    approval_reason=_approval_reason,
)
