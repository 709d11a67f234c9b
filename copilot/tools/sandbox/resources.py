"""Measure from outside what the processes of a sandbox use: memory, kernel buffers, open files and disk.

No file says how much memory a socket holds, so each counts as much as it may: `seccomp` keeps buffers from
growing. Kernel memory is read through the namespaces of a process inside the sandbox.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from copilot.tools.sandbox.directory_tree import DirectoryTree

_DATAGRAM_QUEUE_LENGTH = 11  # datagrams a socket takes before senders block, in a new namespace
_MIN_CONNECTION_BYTES = 128 * 1024  # small packets fill a TCP buffer with little payload
_BUFFERLESS_STATES = ("06", "0A")  # TIME_WAIT; LISTEN
_DATAGRAM_TYPE = "0002"
_TMPFS_MOUNTS = ("tmp", "dev/shm")


def measure_kernel_memory(pid: int) -> int:
    """Return the kernel memory of all processes that share this one's namespaces."""
    return _local_socket_bytes(pid) + _connection_bytes(pid) + _datagram_bytes(pid) + _tmpfs_bytes(pid)


def _local_socket_bytes(pid: int) -> int:
    """Count sockets that wait to be accepted or are in transit inside a message, too."""
    sockets = sum(
        _DATAGRAM_QUEUE_LENGTH if fields[4] == _DATAGRAM_TYPE else 1
        for fields in _read_proc_table(pid, "unix", columns=5)
    )
    netlink_sockets = sum(fields[2] != "0" for fields in _read_proc_table(pid, "netlink", columns=3))
    return (sockets + netlink_sockets) * _socket_buffer_bytes()


def _connection_bytes(pid: int) -> int:
    """Count twice the queued bytes of each connection: packet overhead takes up to as much again."""
    return sum(
        max(2 * _queued_bytes(fields[4]), _MIN_CONNECTION_BYTES)
        for name in ("tcp", "tcp6")
        for fields in _read_proc_table(pid, name, columns=5)
        if fields[3] not in _BUFFERLESS_STATES
    )


def _datagram_bytes(pid: int) -> int:
    return sum(
        _queued_bytes(fields[4])
        for name in ("udp", "udp6")
        for fields in _read_proc_table(pid, name, columns=5)
    )


def _queued_bytes(queues: str) -> int:
    sending, _, received = queues.partition(":")
    return int(sending, 16) + int(received, 16)


def _tmpfs_bytes(pid: int) -> int:
    total = 0
    for place in _TMPFS_MOUNTS:
        try:
            system = os.statvfs(f"/proc/{pid}/root/{place}")
        except OSError:
            continue
        total += (system.f_blocks - system.f_bfree) * system.f_frsize
    return total


def _read_proc_table(pid: int, name: str, *, columns: int) -> Iterator[list[str]]:
    """Yield the rows of a table in /proc/net. Socket names may contain line ends, so odd lines are skipped."""
    try:
        lines = Path(f"/proc/{pid}/net/{name}").read_text(errors="replace").split("\n")
    except OSError:
        return
    for line in lines[1:]:
        fields = line.split(maxsplit=columns)
        if len(fields) >= columns and fields[0].endswith(":") == (name != "netlink"):
            yield fields


@cache
def _socket_buffer_bytes() -> int:
    return int(Path("/proc/sys/net/core/wmem_default").read_text())


MIN_FILE_BYTES = 16_384  # counted for every name: even an empty file takes disk and time to check
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def measure_memory(pid: int) -> int:
    """Return the memory of a process and all its descendants, and what the kernel keeps for them.

    Shared pages are counted once, except those of files in memory.
    """
    family = _list_process_family(pid)
    inside = _find_sandboxed_pid(family)
    return sum(_process_memory(member) for member in family) + (
        measure_kernel_memory(inside) if inside else 0
    )


def count_open_files(pid: int) -> int:
    return sum(_count_descriptors(member) for member in _list_process_family(pid))


def list_descendants(pid: int) -> list[int]:
    return _list_process_family(pid)[1:]


def signal_descendants(pid: int, number: signal.Signals) -> None:
    """Send a signal to the descendants of a process, and to nothing else.

    A process may end and its pid be reused while we look. Only what is a descendant both before and after its
    pidfd was opened is signalled, through that pidfd.
    """
    opened: dict[int, int] = {}
    try:
        for member in list_descendants(pid):
            with contextlib.suppress(OSError):
                opened[member] = os.pidfd_open(member)
        for member in opened.keys() & set(list_descendants(pid)):
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(opened[member], number)
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


class DiskUsage(NamedTuple):
    size_bytes: int
    hidden: bool  # some folder cannot be read, so its size is unknown


def measure_disk_usage(pid: int, folder: Path, *, most: int) -> DiskUsage:
    """Measure a folder, and deleted files that the processes still hold open. Stops counting above `most`."""
    use = _measure_folder(folder, most)
    return (
        use if use.size_bytes > most else use._replace(size_bytes=use.size_bytes + _deleted_file_bytes(pid))
    )


def is_disk_full(folder: Path, *, least_bytes: int, least_names: int) -> bool:
    """Return whether the disk is nearly full, which also catches what the other measurements miss."""
    system = os.statvfs(folder)
    names_counted = system.f_files > 0  # 0 on file systems without a limit of inodes
    return system.f_bavail * system.f_frsize < least_bytes or (
        names_counted and system.f_favail < least_names
    )


def _measure_folder(folder: Path, most: int) -> DiskUsage:
    total = 0
    hidden = False
    with DirectoryTree(folder) as tree:
        for entry in tree.walk():
            total += max(entry.status.st_blocks * 512, MIN_FILE_BYTES)
            hidden = hidden or bool(entry.problem)
            if total > most:
                break
    return DiskUsage(total, hidden)


def _deleted_file_bytes(pid: int) -> int:
    sizes: dict[tuple[int, int], int] = {}
    for member in _list_process_family(pid):
        for held in Path(f"/proc/{member}/fd").glob("*"):
            try:
                file = held.stat()
            except OSError:
                continue
            if stat.S_ISREG(file.st_mode) and not file.st_nlink:
                sizes[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())


def _list_process_family(pid: int) -> list[int]:
    found = [pid]
    for member in found:  # the list grows while it is read
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                found += (int(child) for child in children.read_text().split())
            except OSError:
                continue
    return found


def _find_sandboxed_pid(family: list[int]) -> int | None:
    """Find a process inside the sandbox: bubblewrap's own first process still has our network namespace."""
    ours = os.stat("/proc/self/ns/net").st_ino
    for member in family:
        try:
            if os.stat(f"/proc/{member}/ns/net").st_ino != ours:
                return member
        except OSError:
            continue
    return None


def _count_descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _process_memory(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
        return 0
    except OSError:
        return _resident_memory(pid)


def _resident_memory(pid: int) -> int:
    """Estimate by the resident memory that is not backed by files, where the exact share may not be read."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES
