"""Measure from outside what a family of processes and a folder take of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from pathlib import Path
from typing import NamedTuple

from copilot.tools import buffers
from copilot.workspace.trees import Tree

LEAST_BYTES = (
    16_384  # of every name: one that holds nothing takes its part of a disk, and of the time to look
)
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


def signal_descendants(pid: int, number: signal.Signals) -> None:
    """Send a signal to everything that a process has started, and to nothing else.

    A process may end, and its number go to another program of this machine, while we look. Only what is a descendant
    both before and after its descriptor was opened is signalled, by that descriptor.
    """
    opened: dict[int, int] = {}
    try:
        for member in descendants(pid):
            with contextlib.suppress(OSError):
                opened[member] = os.pidfd_open(member)
        for member in opened.keys() & set(descendants(pid)):
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(opened[member], number)
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


class DiskUse(NamedTuple):
    size_bytes: int
    hidden: bool  # some folder cannot be looked into, so that nobody knows what lies there


def disk_use(pid: int, folder: Path, *, most: int) -> DiskUse:
    """Measure what lies in a folder, with what a family of processes holds open and has no name any more.

    Looking ends when it is more than `most`.
    """
    use = _folder_use(folder, most)
    return use if use.size_bytes > most else use._replace(size_bytes=use.size_bytes + _nameless_bytes(pid))


def is_disk_full(folder: Path, *, least_bytes: int, least_names: int) -> bool:
    """Whatever was hidden from the other figures shows here."""
    system = os.statvfs(folder)
    names_counted = system.f_files > 0  # some file systems have no end of them
    return system.f_bavail * system.f_frsize < least_bytes or (
        names_counted and system.f_favail < least_names
    )


def _folder_use(folder: Path, most: int) -> DiskUse:
    total = 0
    hidden = False
    with Tree(folder) as tree:
        for entry in tree.walk():
            total += max(entry.status.st_blocks * 512, LEAST_BYTES)
            hidden = hidden or bool(entry.problem)
            if total > most:
                break
    return DiskUse(total, hidden)


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
