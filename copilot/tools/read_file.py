"""Lets the model read a file of the workspace: text in parts, images as images (A22)."""

from __future__ import annotations

import io
from dataclasses import replace
from uuid import UUID

from django.conf import settings
from pydantic import Field

from copilot.bridge import in_thread
from copilot.models import WorkspaceFile
from copilot.provenance import sources_of_file
from copilot.providers.base import ImagePart
from copilot.tools.base import Arguments, Invocation, Tool, ToolFailed, ToolOutput, prose
from copilot.tools.scope import session_scope
from copilot.workspace import files, pictures, sniffing

MAX_CHARACTERS = min(50_000, settings.TOOL_OUTPUT_CHARACTERS - 1_000)  # a part is not cut again
SKIPPED_AT_ONCE = 1_000_000  # characters in front of the offset, read and forgotten in pieces


class ReadFile(Arguments):
    file: str = Field(min_length=1, max_length=500, description="A file id, a workspace:// URI, or a name.")
    offset: int = Field(default=0, ge=0, description="The first character to read.")
    length: int = Field(default=MAX_CHARACTERS, ge=1, le=MAX_CHARACTERS)


async def read_file(arguments: ReadFile, invocation: Invocation) -> ToolOutput:
    context = invocation.context
    file = await in_thread(files.find, context.user_id, arguments.file, session_id=session_scope(context))
    files.check_scan(file)
    about = f"{file.name}, {file.mime}, {file.size_bytes:,} bytes, workspace://{file.id}"
    sources = await in_thread(sources_of_file, file, session_id=UUID(context.session_id))
    if sniffing.is_text(file.mime):
        return replace(await in_thread(_text, file, arguments, about), sources=sources)
    image = await in_thread(pictures.image, file)
    if image is not None:
        return ToolOutput(
            value=f"[{about}]",
            media=(ImagePart(mime=image.mime, data=image.data, name=file.name, file_id=str(file.id)),),
            sources=sources,
        )
    return ToolOutput(
        value=f"[{about}]\nThis is not text. Give the user its link, or work with it by another tool."
    )


def _text(file: WorkspaceFile, arguments: ReadFile, about: str) -> ToolOutput:
    with files.open(file) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
        try:
            _skip(text, arguments.offset)
            part = text.read(arguments.length)
            more = bool(text.read(1))
        except UnicodeDecodeError as problem:
            raise ToolFailed("not_text", f"{file.name} is not UTF-8 text.") from problem
    end = arguments.offset + len(part)
    where = f"characters {arguments.offset:,} to {end:,}" if part else "nothing at this offset"
    return ToolOutput(value=f"[{about}; {where}; {'more follows' if more else 'end of file'}]\n{part}")


def _skip(text: io.TextIOWrapper, characters: int) -> None:
    while characters > 0 and (skipped := text.read(min(characters, SKIPPED_AT_ONCE))):
        characters -= len(skipped)


TOOL = Tool(
    name="read_file",
    arguments=ReadFile,
    run=read_file,
    description=prose(__file__, most=MAX_CHARACTERS),
    returns_user_text=True,
    timeout_seconds=30,
    read_only=True,
    repeatable=True,
)
