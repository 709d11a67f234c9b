"""What a scan says of the files that a tool made, in words for the model (S4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from copilot.bridge import in_thread
from copilot.models import WorkspaceFile
from copilot.workspace import files

WAIT_SECONDS = (
    5.0  # a scan takes a fraction of one; with no scanner at work every call of a turn waits so long
)
LOOK_SECONDS = 0.1

PENDING: Final = "still being checked; until that ends well nobody can open, read or share it."
INFECTED: Final = "in quarantine, because a scan found something harmful; nobody can open, read or share it."
UNSEEN: Final = "it could not be kept, and so not be checked."


async def settled(made: Sequence[WorkspaceFile]) -> None:
    """Wait a little for the scans of new files; each file says afterwards what it is."""
    until = time.monotonic() + WAIT_SECONDS
    while waiting := [file for file in made if file.scan == WorkspaceFile.Scan.PENDING]:
        await in_thread(files.read_scans, waiting)
        if time.monotonic() >= until:
            return
        if any(file.scan == WorkspaceFile.Scan.PENDING for file in waiting):
            await asyncio.sleep(LOOK_SECONDS)


def remark(file: WorkspaceFile) -> dict[str, str]:
    """The field that a result has for a file which cannot be used; none for any other."""
    if file.scan in files.USABLE:
        return {}
    return {"scan": INFECTED if file.scan == WorkspaceFile.Scan.INFECTED else PENDING}
