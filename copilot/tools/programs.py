"""One program in the sandbox with the session's files around it, and its result as fields (A23.3, A23.4)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from uuid import UUID

from django.conf import settings

from copilot import artifacts
from copilot.bridge import in_thread
from copilot.events import JSON
from copilot.models import WorkspaceFile
from copilot.providers.base import ImagePart
from copilot.tools import sandbox, scans
from copilot.tools.base import Invocation, ToolFailed, ToolOutput
from copilot.workspace import mirrors, pictures

LONGEST_SECONDS = int(settings.MAX_TOOL_WAIT_SECONDS)
MARGIN_SECONDS = 15.0  # of the longest wait, for the files before and after
NAMED = 20  # files named one by one in a result
MAX_IMAGES = 4
FOLDER_PREFIX = "pilothouse-sandbox-"
ABANDONED_SECONDS = 3_600  # far beyond the longest call: whoever made it was killed


@dataclass(frozen=True, kw_only=True)
class Program:
    words: Sequence[str]
    seconds: float
    workdir: str = ""
    shows_images: bool = False


async def execute(program: Program, invocation: Invocation) -> ToolOutput:
    """Lay out, run, save. A program that fails is a result; only a broken sandbox is a failure."""
    _check(program.workdir)
    program = replace(program, seconds=min(program.seconds, max(1.0, LONGEST_SECONDS - MARGIN_SECONDS)))
    owner_id, session_id = invocation.context.user_id, UUID(invocation.context.session_id)
    await asyncio.to_thread(_remove_abandoned)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    try:
        before = await in_thread(_laid_out, owner_id, session_id, folder)
        finished = await sandbox.run(
            program.words,
            folder=folder,
            workdir=program.workdir,
            seconds=program.seconds,
        )
        saved = await in_thread(
            mirrors.save_changes, owner_id, session_id, invocation.call_id, folder, before
        )
    finally:
        await asyncio.shield(asyncio.to_thread(mirrors.remove, folder))
    for file in saved.files:
        invocation.emit(artifacts.added(file))
    await scans.settled(saved.files)
    media = await in_thread(_images, saved.files) if program.shows_images else ()
    return ToolOutput(value=_fields(program, finished, before, saved), media=media)


def _remove_abandoned() -> None:
    """What killed workers left of people's files; anybody may make names in a folder that all share."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # another worker was quicker
            found = folder.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid in {os.geteuid(), sandbox.NOBODY}
            if ours and time.time() - found.st_ctime > ABANDONED_SECONDS:
                mirrors.remove(folder)


def _check(workdir: str) -> None:
    path = PurePosixPath(workdir)
    if path.is_absolute() or ".." in path.parts or "\x00" in workdir:
        raise ToolFailed("invalid_workdir", "workdir is a folder below the working directory.")


def _laid_out(owner_id: int, session_id: UUID, folder: Path) -> mirrors.Layout:
    layout = mirrors.lay_out(owner_id, session_id, folder)
    sandbox.prepare(folder)
    return layout


def _fields(
    program: Program, finished: sandbox.Finished, before: mirrors.Layout, saved: mirrors.Saved
) -> dict[str, JSON]:
    return {
        "stdout": finished.stdout.text,
        "stderr": finished.stderr.text,
        "exit_code": finished.exit_code,
        "timed_out": finished.timed_out,
        "files": [_named(file) for file in saved.files],
        "message": " ".join(_remarks(program, finished, before, saved)),
    }


def _named(file: WorkspaceFile) -> JSON:
    return {
        "name": file.name,
        "uri": f"workspace://{file.id}",
        "size_bytes": file.size_bytes,
        **scans.remark(file),
    }


def _remarks(
    program: Program, finished: sandbox.Finished, before: mirrors.Layout, saved: mirrors.Saved
) -> list[str]:
    said: list[str] = []
    if finished.timed_out:
        said.append(f"Stopped after {program.seconds:g} s; what it had put out by then is here.")
    if finished.excess:
        said.append(f"Stopped, because {finished.excess}.")
    for name, stream in (("stdout", finished.stdout), ("stderr", finished.stderr)):
        if stream.left_out:
            said.append(f"{stream.left_out:,} more bytes of {name} were not kept.")
    for sentence, names in (
        ("Not in the working directory, for want of room:", before.left_out),
        ("Not in the working directory, because no scan has let them through:", before.unsafe),
        (f"Not saved, because a call saves {mirrors.MAX_SAVED} files:", saved.left_out),
        ("Could not be saved:", saved.failed),
    ):
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            said.append(f"{sentence} {', '.join(names[:NAMED])}{more}.")
    return said


def _images(saved: Sequence[WorkspaceFile]) -> tuple[ImagePart, ...]:
    found = ((file, pictures.image(file)) for file in saved)
    images = (
        ImagePart(mime=image.mime, data=image.data, name=file.name, file_id=str(file.id))
        for file, image in found
        if image is not None
    )
    return tuple(islice(images, MAX_IMAGES))
