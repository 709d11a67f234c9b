"""Run one program in the sandbox with the session's files in its folder, and report the result."""

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

from config.core.db import run_in_thread
from config.core.json_values import JSON
from copilot.files import artifacts
from copilot.files import services as files
from copilot.models import WorkspaceFile
from copilot.providers.base import ImagePart
from copilot.tools import results
from copilot.tools.base import ToolError, ToolInvocation, ToolOutput
from copilot.tools.sandbox import bubblewrap, workspace_sync

MAX_PROGRAM_SECONDS = int(settings.MAX_TOOL_WAIT_SECONDS)
FILE_SYNC_MARGIN_SECONDS = 15.0  # reserved for laying out and saving files
MAX_NAMED_FILES = 20  # files named one by one in a result
MAX_SHOWN_IMAGES = 4
FOLDER_PREFIX = "pilothouse-sandbox-"
WORK_FOLDER_NAME = "work"  # inside the call's folder; the part the program sees
ABANDONED_AFTER_SECONDS = 3_600  # far beyond the longest call: its worker was killed
QUEUE_TIMEOUT_SECONDS = 60.0  # waiting for another program to end


@dataclass(frozen=True, kw_only=True)
class SandboxProgram:
    words: Sequence[str]
    seconds: float
    workdir: str = ""
    shows_images: bool = False


async def execute_program(program: SandboxProgram, invocation: ToolInvocation) -> ToolOutput:
    """Lay out files, run the program and save changes. A program that fails is a result, not an error."""
    _check_workdir(program.workdir)
    owner_id = invocation.context.user_id
    began = time.monotonic()
    async with _acquire_slot(owner_id):
        left = MAX_PROGRAM_SECONDS - FILE_SYNC_MARGIN_SECONDS - (time.monotonic() - began)
        program = replace(program, seconds=min(program.seconds, max(1.0, left)))
        before, finished, saved = await _run_in_folder(program, invocation)
    for file in saved.files:
        invocation.emit(artifacts.make_added_event(file))
    await results.wait_for_scans(saved.files)
    media = await run_in_thread(_load_shown_images, saved.files) if program.shows_images else ()
    return ToolOutput(
        value=_build_result(program, finished, before, saved), media=media, sources=before.sources
    )


async def _run_in_folder(
    program: SandboxProgram, invocation: ToolInvocation
) -> tuple[workspace_sync.WorkspaceLayout, bubblewrap.ProgramResult, workspace_sync.SavedChanges]:
    owner_id, session_id = invocation.context.user_id, UUID(invocation.context.session_id)
    await asyncio.to_thread(_remove_abandoned_folders)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    try:
        work = _make_work_folder(folder)
        before = await run_in_thread(_lay_out_files, owner_id, session_id, work)
        finished = await bubblewrap.run_program(
            program.words,
            folder=work,
            workdir=program.workdir,
            seconds=program.seconds,
        )
        saved = await run_in_thread(
            workspace_sync.save_changes, owner_id, session_id, invocation.call_id, work, before
        )
    finally:
        await asyncio.shield(asyncio.to_thread(workspace_sync.remove_folder, folder))
    return before, finished, saved


def _make_work_folder(folder: Path) -> Path:
    """Make the program's folder inside one of ours, so that nobody else can replace it.

    The sandbox account may only pass through the outer folder.
    """
    folder.chmod(0o711)
    work = folder / WORK_FOLDER_NAME
    work.mkdir(0o700)
    return work


class _ProgramSlots:
    """Limits for concurrent programs in this process, as each may take a gigabyte. An account gets half of them."""

    def __init__(self) -> None:
        self.all = asyncio.Semaphore(settings.SANDBOX_CONCURRENCY)
        self.by_account: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    def get_account_slots(self, owner_id: int) -> asyncio.Semaphore:
        share = asyncio.Semaphore(max(1, settings.SANDBOX_CONCURRENCY // 2))
        return self.by_account.setdefault(owner_id, share)


_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, _ProgramSlots] = WeakKeyDictionary()


@asynccontextmanager
async def _acquire_slot(owner_id: int) -> AsyncIterator[None]:
    slots = _slots.setdefault(asyncio.get_running_loop(), _ProgramSlots())
    async with AsyncExitStack() as held:
        try:
            async with asyncio.timeout(QUEUE_TIMEOUT_SECONDS):
                await held.enter_async_context(slots.get_account_slots(owner_id))
                await held.enter_async_context(slots.all)
        except TimeoutError as problem:
            raise ToolError(
                "sandbox_busy", "Too many programs are running. Try again in a minute."
            ) from problem
        yield


def _remove_abandoned_folders() -> None:
    """Remove folders that killed workers left behind.

    Only our own are touched, as the temporary directory is shared.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # another worker was quicker
            status = folder.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if is_ours and time.time() - status.st_ctime > ABANDONED_AFTER_SECONDS:
                workspace_sync.remove_folder(folder)


def _check_workdir(workdir: str) -> None:
    path = PurePosixPath(workdir)
    if path.is_absolute() or ".." in path.parts or "\x00" in workdir:
        raise ToolError("invalid_workdir", "workdir is a folder below the working directory.")


def _lay_out_files(owner_id: int, session_id: UUID, folder: Path) -> workspace_sync.WorkspaceLayout:
    layout = workspace_sync.lay_out_files(owner_id, session_id, folder)
    bubblewrap.prepare_folder(folder)
    return layout


def _build_result(
    program: SandboxProgram,
    finished: bubblewrap.ProgramResult,
    before: workspace_sync.WorkspaceLayout,
    saved: workspace_sync.SavedChanges,
) -> dict[str, JSON]:
    return {
        "stdout": finished.stdout.text,
        "stderr": finished.stderr.text,
        "exit_code": finished.exit_code,
        "timed_out": finished.timed_out,
        "files": [_describe_file(file) for file in saved.files],
        "message": " ".join(_list_remarks(program, finished, before, saved)),
    }


def _describe_file(file: WorkspaceFile) -> JSON:
    return {
        "name": file.name,
        "uri": f"workspace://{file.id}",
        "size_bytes": file.size_bytes,
        **results.describe_scan(file),
    }


def _list_remarks(
    program: SandboxProgram,
    finished: bubblewrap.ProgramResult,
    before: workspace_sync.WorkspaceLayout,
    saved: workspace_sync.SavedChanges,
) -> list[str]:
    remarks: list[str] = []
    if finished.timed_out:
        remarks.append(f"Stopped after {program.seconds:g} s; what it had put out by then is here.")
    if finished.excess:
        remarks.append(f"Stopped, because {finished.excess}.")
    for name, stream in (("stdout", finished.stdout), ("stderr", finished.stderr)):
        if stream.left_out:
            remarks.append(f"{stream.left_out:,} more bytes of {name} were not kept.")
    for sentence, names in (
        ("Not in the working directory, for want of room:", before.left_out),
        ("Not in the working directory, because no scan has let them through:", before.unsafe),
        (f"Not saved, because a call saves {workspace_sync.MAX_SAVED_FILES} files:", saved.left_out),
        ("Could not be saved:", saved.failed),
    ):
        if names:
            more = f" and {len(names) - MAX_NAMED_FILES} more" if len(names) > MAX_NAMED_FILES else ""
            remarks.append(f"{sentence} {', '.join(names[:MAX_NAMED_FILES])}{more}.")
    return remarks


def _load_shown_images(saved: Sequence[WorkspaceFile]) -> tuple[ImagePart, ...]:
    found = ((file, files.load_image(file)) for file in saved)
    images = (
        ImagePart(mime=image.mime, data=image.data, name=file.name, file_id=str(file.id))
        for file, image in found
        if image is not None
    )
    return tuple(islice(images, MAX_SHOWN_IMAGES))
