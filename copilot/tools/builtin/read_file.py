"""The `read_file` tool: read a workspace file, text in parts and images as images."""

from __future__ import annotations

import io
from dataclasses import replace
from uuid import UUID

from django.conf import settings
from pydantic import Field

from config.core.db import run_in_thread
from copilot.chat.provenance import list_file_sources
from copilot.files import content_types
from copilot.files import services as files
from copilot.models import WorkspaceFile
from copilot.providers.base import ImagePart
from copilot.tools.base import (
    Tool,
    ToolArguments,
    ToolError,
    ToolInvocation,
    ToolOutput,
    get_file_scope,
    load_description,
)

MAX_CHARACTERS = min(
    50_000, settings.TOOL_OUTPUT_CHARACTERS - 1_000
)  # below the limit, so that a part is not truncated again
SKIP_CHUNK_CHARACTERS = 1_000_000  # characters before the offset are read and dropped in pieces of this size


class ReadFile(ToolArguments):
    file: str = Field(min_length=1, max_length=500, description="A file id, a workspace:// URI, or a name.")
    offset: int = Field(default=0, ge=0, description="The first character to read.")
    length: int = Field(default=MAX_CHARACTERS, ge=1, le=MAX_CHARACTERS)


async def read_file(arguments: ReadFile, invocation: ToolInvocation) -> ToolOutput:
    context = invocation.context
    file = await run_in_thread(
        files.find_file, context.user_id, arguments.file, session_id=get_file_scope(context)
    )
    files.check_scan(file)
    about = f"{file.name}, {file.mime}, {file.size_bytes:,} bytes, workspace://{file.id}"
    sources = await run_in_thread(list_file_sources, file, session_id=UUID(context.session_id))
    if content_types.is_text(file.mime):
        return replace(await run_in_thread(_read_text, file, arguments, about), sources=sources)
    image = await run_in_thread(files.load_image, file)
    if image is not None:
        return ToolOutput(
            value=f"[{about}]",
            media=(ImagePart(mime=image.mime, data=image.data, name=file.name, file_id=str(file.id)),),
            sources=sources,
        )
    return ToolOutput(
        value=f"[{about}]\nThis is not text. Give the user its link, or work with it by another tool."
    )


def _read_text(file: WorkspaceFile, arguments: ReadFile, about: str) -> ToolOutput:
    with files.open_file(file) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
        try:
            _skip_characters(text, arguments.offset)
            part = text.read(arguments.length)
            more = bool(text.read(1))
        except UnicodeDecodeError as problem:
            raise ToolError("not_text", f"{file.name} is not UTF-8 text.") from problem
    end = arguments.offset + len(part)
    where = f"characters {arguments.offset:,} to {end:,}" if part else "nothing at this offset"
    return ToolOutput(value=f"[{about}; {where}; {'more follows' if more else 'end of file'}]\n{part}")


def _skip_characters(text: io.TextIOWrapper, characters: int) -> None:
    while characters > 0 and (skipped := text.read(min(characters, SKIP_CHUNK_CHARACTERS))):
        characters -= len(skipped)


TOOL = Tool(
    name="read_file",
    arguments=ReadFile,
    run=read_file,
    description=load_description(__file__, most=MAX_CHARACTERS),
    returns_user_text=True,
    timeout_seconds=30,
    read_only=True,
    repeatable=True,
)
