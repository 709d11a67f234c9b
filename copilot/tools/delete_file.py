"""Lets the model delete a file of the workspace, after the user has agreed (A22.3)."""

from __future__ import annotations

from django.conf import settings
from pydantic import Field

from copilot.bridge import in_thread
from copilot.context import TurnContext
from copilot.errors import NotFound
from copilot.events import JSON
from copilot.models import WorkspaceFile
from copilot.tools.base import Arguments, Invocation, Tool, ToolOutput, prose
from copilot.tools.scope import session_scope
from copilot.workspace import files, shares

SHARED = "A link shares this file; deleting it ends that for good."


class DeleteFile(Arguments):
    file: str = Field(min_length=1, max_length=500, description="A file id, a workspace:// URI, or a name.")


async def delete_file(arguments: DeleteFile, invocation: Invocation) -> ToolOutput:
    file = await in_thread(_delete, arguments, invocation)
    return ToolOutput(
        value=f"{file.name} is in the trash; the user can bring it back for {settings.WORKSPACE_TRASH_DAYS} days."
    )


def _delete(arguments: DeleteFile, invocation: Invocation) -> WorkspaceFile:
    context = invocation.context
    file = files.find(context.user_id, arguments.file, session_id=session_scope(context))
    files.delete(context.user_id, file.id)
    return file


def _asks(arguments: DeleteFile, context: TurnContext) -> str:
    """What a person should know of this very file before it goes (S3)."""
    try:
        file = files.find(context.user_id, arguments.file, session_id=session_scope(context))
    except NotFound:
        return ""  # the call itself will say so
    return SHARED if shares.public_among([file.pk]) else ""


def _pins(arguments: DeleteFile, context: TurnContext) -> dict[str, JSON]:
    file = files.find(context.user_id, arguments.file, session_id=session_scope(context))
    return {"arguments": {"file": str(file.id)}, "sha256": file.sha256}


TOOL = Tool(
    name="delete_file",
    arguments=DeleteFile,
    run=delete_file,
    pins=_pins,
    description=prose(__file__, days=settings.WORKSPACE_TRASH_DAYS),
    returns_user_text=True,
    timeout_seconds=30,
    approval="ask",
    asks=_asks,
)
