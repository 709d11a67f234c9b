"""Run one program in the sandbox with the session's files around it, and tell its result as fields."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from uuid import UUID
from weakref import WeakKeyDictionary, WeakValueDictionary

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
WORK = "work"  # in the folder of a call: what the program sees
ABANDONED_SECONDS = 3_600  # far beyond the longest call: whoever made it was killed
QUEUE_SECONDS = 60.0  # for another program to end


@dataclass(frozen=True, kw_only=True)
class Program:
    words: Sequence[str]
    seconds: float
    workdir: str = ""
    shows_images: bool = False


async def execute(program: Program, invocation: Invocation) -> ToolOutput:
    """Lay out, run, save. A program that fails is a result; only a broken sandbox is a failure."""
    _check(program.workdir)
    owner_id = invocation.context.user_id
    began = time.monotonic()
    async with _slot(owner_id):
        left = LONGEST_SECONDS - MARGIN_SECONDS - (time.monotonic() - began)
        program = replace(program, seconds=min(program.seconds, max(1.0, left)))
        before, finished, saved = await _run_in_folder(program, invocation)
    for file in saved.files:
        invocation.emit(artifacts.added(file))
    await scans.settled(saved.files)
    media = await in_thread(_images, saved.files) if program.shows_images else ()
    return ToolOutput(value=_fields(program, finished, before, saved), media=media)


async def _run_in_folder(
    program: Program, invocation: Invocation
) -> tuple[mirrors.Layout, sandbox.Finished, mirrors.Saved]:
    owner_id, session_id = invocation.context.user_id, UUID(invocation.context.session_id)
    await asyncio.to_thread(_remove_abandoned)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    try:
        work = _work_folder(folder)
        before = await in_thread(_laid_out, owner_id, session_id, work)
        finished = await sandbox.run(
            program.words,
            folder=work,
            workdir=program.workdir,
            seconds=program.seconds,
        )
        saved = await in_thread(mirrors.save_changes, owner_id, session_id, invocation.call_id, work, before)
    finally:
        await asyncio.shield(asyncio.to_thread(mirrors.remove, folder))
    return before, finished, saved


def _work_folder(folder: Path) -> Path:
    """Below a folder of our own, so that nobody else can put something in its place; its account only passes through."""
    folder.chmod(0o711)
    work = folder / WORK
    work.mkdir(0o700)
    return work


class _Slots:
    """Programs that run at once in this process: each may take a gigabyte of memory. An account has half of them."""

    def __init__(self) -> None:
        self.all = asyncio.Semaphore(settings.SANDBOX_CONCURRENCY)
        self.by_account: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    def of_account(self, owner_id: int) -> asyncio.Semaphore:
        share = asyncio.Semaphore(max(1, settings.SANDBOX_CONCURRENCY // 2))
        return self.by_account.setdefault(owner_id, share)


_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, _Slots] = WeakKeyDictionary()


@asynccontextmanager
async def _slot(owner_id: int) -> AsyncIterator[None]:
    slots = _slots.setdefault(asyncio.get_running_loop(), _Slots())
    async with AsyncExitStack() as held:
        try:
            async with asyncio.timeout(QUEUE_SECONDS):
                await held.enter_async_context(slots.of_account(owner_id))
                await held.enter_async_context(slots.all)
        except TimeoutError as problem:
            raise ToolFailed(
                "sandbox_busy", "Too many programs are running. Try again in a minute."
            ) from problem
        yield


def _remove_abandoned() -> None:
    """Remove what killed workers left of people's files; anybody may make names in a folder that all share."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # another worker was quicker
            found = folder.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
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
