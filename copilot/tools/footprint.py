"""What a family of processes and a folder take of this machine, measured from outside (A23.1)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from copilot.tools import buffers

LEAST_BYTES = 4_096  # of every name: one that holds nothing takes its part of a disk, too
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def memory_bytes(pid: int) -> int:
    """Memory of a process and all its descendants, and what the kernel keeps for them.

    Pages they share are counted once, but for those of files in memory.
    """
    family = _family(pid)
    inside = _first_inside(family)
    return sum(_memory(member) for member in family) + (buffers.kept_bytes(inside) if inside else 0)


def descriptors(pid: int) -> int:
    """Open files of a process and all its descendants."""
    return sum(_open_files(member) for member in _family(pid))


def descendants(pid: int) -> list[int]:
    """Everything that a process has started, and what that has started."""
    return _family(pid)[1:]


def disk_bytes(pid: int, folder: Path) -> int:
    """What lies in a folder takes on disk, with what a family of processes holds open and has no name any more."""
    return _folder_bytes(folder) + _nameless_bytes(pid)


def _folder_bytes(folder: Path) -> int:
    """Files that vanish meanwhile take nothing."""
    total = 0
    for parent, names, leaves in os.walk(folder):
        for name in (*names, *leaves):
            try:
                total += max(os.lstat(os.path.join(parent, name)).st_blocks * 512, LEAST_BYTES)
            except OSError:
                continue
    return total


def _nameless_bytes(pid: int) -> int:
    sizes: dict[tuple[int, int], int] = {}
    for member in _family(pid):
        for held in Path(f"/proc/{member}/fd").glob("*"):
            try:
                file = held.stat()
            except OSError:
                continue
            if stat.S_ISREG(file.st_mode) and not file.st_nlink:
                sizes[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())


def _family(pid: int) -> list[int]:
    found = [pid]
    for member in found:  # it grows while it is read
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                found += (int(child) for child in children.read_text().split())
            except OSError:
                continue
    return found


def _first_inside(family: list[int]) -> int | None:
    """The walls stand outside of themselves: their first process has our network."""
    ours = os.stat("/proc/self/ns/net").st_ino
    for member in family:
        try:
            if os.stat(f"/proc/{member}/ns/net").st_ino != ours:
                return member
        except OSError:
            continue
    return None


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _memory(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
        return 0
    except OSError:
        return _resident(pid)


def _resident(pid: int) -> int:
    """Where the exact share may not be read, what is resident and not of a file."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES
