"""The `write_file` tool: put a file into the workspace, where the user finds it."""

from __future__ import annotations

import base64
import binascii
from typing import Self
from uuid import UUID

from django.db import connection, transaction
from pydantic import Field, model_validator

from config.core.db import run_in_thread
from config.core.errors import NotFound
from config.core.text import clean_filename, get_basename
from copilot.chat.turn_context import TurnContext
from copilot.files import artifacts
from copilot.files import services as files
from copilot.models import WorkspaceFile
from copilot.tools import results
from copilot.tools.base import (
    Tool,
    ToolArguments,
    ToolError,
    ToolInvocation,
    ToolOutput,
    get_file_scope,
    load_description,
)


class WriteFile(ToolArguments):
    name: str = Field(
        min_length=1, max_length=500, description="Folders are ignored: only the last part counts."
    )
    content: str | None = Field(default=None, description="Text, stored as UTF-8.")
    base64: str | None = Field(default=None, description="Bytes, instead of content.")
    mime: str | None = Field(default=None, max_length=127, description="A claim; the content decides.")
    overwrite: bool = Field(default=False, description="Let the name mean this file from now on.")

    @model_validator(mode="after")
    def _check_single_content(self) -> Self:
        if (self.content is None) == (self.base64 is None):
            raise ValueError("give either content or base64")
        return self


async def write_file(arguments: WriteFile, invocation: ToolInvocation) -> ToolOutput:
    if not get_basename(arguments.name).strip("."):
        raise ToolError("invalid_name", "The name has no last part to call the file by.")
    file = await run_in_thread(_store_file, arguments, invocation.context, invocation.call_id)
    invocation.emit(artifacts.make_added_event(file))
    await results.wait_for_scans([file])
    if file.scan == WorkspaceFile.Scan.INFECTED:
        raise ToolError("quarantined", f"{file.name} is {results.SCAN_INFECTED_NOTE}")
    return ToolOutput(
        value={
            "file_id": str(file.id),
            "uri": f"workspace://{file.id}",
            "name": file.name,
            "type": file.mime,
            "size_bytes": file.size_bytes,
            **results.describe_scan(file),
        }
    )


def _store_file(arguments: WriteFile, context: TurnContext, call_id: str) -> WorkspaceFile:
    name = clean_filename(arguments.name)
    if arguments.overwrite:
        return _write_content(name, arguments, context, call_id)
    with transaction.atomic(), connection.cursor() as cursor:
        # Calls of one reply run in parallel. Of two calls with the same name, the second must find the first's file.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"{context.user_id}/{name}"])
        if _name_exists(context, name):
            raise ToolError("exists", f"There is a file named {name}. Choose another name, or set overwrite.")
        return _write_content(name, arguments, context, call_id)


def _write_content(name: str, arguments: WriteFile, context: TurnContext, call_id: str) -> WorkspaceFile:
    return files.store_file(
        context.user_id,
        name=name,
        content=_decode_content(arguments),
        source="agent",
        session_id=UUID(context.session_id),
        call_id=call_id,
    )


def _name_exists(context: TurnContext, name: str) -> bool:
    try:
        files.find_file(context.user_id, name, session_id=get_file_scope(context))
    except NotFound:
        return False
    return True


def _decode_content(arguments: WriteFile) -> bytes:
    if arguments.content is not None:
        return arguments.content.encode("utf-8", "replace")
    try:
        return base64.b64decode(arguments.base64 or "", validate=True)
    except (binascii.Error, ValueError) as problem:
        raise ToolError("invalid_base64", "The base64 text does not decode.") from problem


TOOL = Tool(
    name="write_file",
    arguments=WriteFile,
    run=write_file,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=30,
)
