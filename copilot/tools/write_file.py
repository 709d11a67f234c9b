"""Lets the model put a file into the workspace, where the user finds it (A22)."""

from __future__ import annotations

import base64
import binascii
from typing import Self
from uuid import UUID

from django.db import connection, transaction
from pydantic import Field, model_validator

from copilot import artifacts
from copilot.bridge import in_thread
from copilot.context import TurnContext
from copilot.errors import NotFound
from copilot.models import WorkspaceFile
from copilot.names import last_part, stored_name
from copilot.tools import scans
from copilot.tools.base import Arguments, Invocation, Tool, ToolFailed, ToolOutput, prose
from copilot.tools.scope import session_scope
from copilot.workspace import files


class WriteFile(Arguments):
    name: str = Field(
        min_length=1, max_length=500, description="Folders are ignored: only the last part counts."
    )
    content: str | None = Field(default=None, description="Text, stored as UTF-8.")
    base64: str | None = Field(default=None, description="Bytes, instead of content.")
    mime: str | None = Field(default=None, max_length=127, description="A claim; the content decides.")
    overwrite: bool = Field(default=False, description="Let the name mean this file from now on.")

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        if (self.content is None) == (self.base64 is None):
            raise ValueError("give either content or base64")
        return self


async def write_file(arguments: WriteFile, invocation: Invocation) -> ToolOutput:
    if not last_part(arguments.name).strip("."):
        raise ToolFailed("invalid_name", "The name has no last part to call the file by.")
    file = await in_thread(_store, arguments, invocation.context, invocation.call_id)
    invocation.emit(artifacts.added(file))
    await scans.settled([file])
    if file.scan == WorkspaceFile.Scan.INFECTED:
        raise ToolFailed("quarantined", f"{file.name} is {scans.INFECTED}")
    return ToolOutput(
        value={
            "file_id": str(file.id),
            "uri": f"workspace://{file.id}",
            "name": file.name,
            "type": file.mime,
            "size_bytes": file.size_bytes,
            **scans.remark(file),
        }
    )


def _store(arguments: WriteFile, context: TurnContext, call_id: str) -> WorkspaceFile:
    name = stored_name(arguments.name)
    if arguments.overwrite:
        return _write(name, arguments, context, call_id)
    with transaction.atomic(), connection.cursor() as cursor:
        # Calls of one reply run side by side: of two that give one name, the second finds the first.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"{context.user_id}/{name}"])
        if _exists(context, name):
            raise ToolFailed(
                "exists", f"There is a file named {name}. Choose another name, or set overwrite."
            )
        return _write(name, arguments, context, call_id)


def _write(name: str, arguments: WriteFile, context: TurnContext, call_id: str) -> WorkspaceFile:
    return files.store(
        context.user_id,
        name=name,
        content=_content(arguments),
        source="agent",
        session_id=UUID(context.session_id),
        call_id=call_id,
    )


def _exists(context: TurnContext, name: str) -> bool:
    try:
        files.find(context.user_id, name, session_id=session_scope(context))
    except NotFound:
        return False
    return True


def _content(arguments: WriteFile) -> bytes:
    if arguments.content is not None:
        return arguments.content.encode("utf-8", "replace")
    try:
        return base64.b64decode(arguments.base64 or "", validate=True)
    except (binascii.Error, ValueError) as problem:
        raise ToolFailed("invalid_base64", "The base64 text does not decode.") from problem


TOOL = Tool(
    name="write_file",
    arguments=WriteFile,
    run=write_file,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=30,
)
