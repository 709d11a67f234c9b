"""What the kernel keeps in memory for a program in the sandbox, beside the program's own (A23.1).

No file says how much a socket holds, so each counts as much as it may: `seccomp` keeps their buffers from growing. Read
from outside, by the namespaces of a process inside.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_QUEUED_LETTERS = 11  # that a socket for datagrams takes before senders wait, in a new namespace
_LEAST_OF_A_CONNECTION = 128 * 1024  # small packets fill a TCP buffer with little in it
_EMPTY_STATES = ("06", "0A")  # gone but remembered; listening
_DATAGRAMS = "0002"
_IN_MEMORY = ("tmp", "dev/shm")


def kept_bytes(pid: int) -> int:
    """For all processes that share the namespaces of this one."""
    return _local_sockets(pid) + _connections(pid) + _datagrams(pid) + _files_in_memory(pid)


def _local_sockets(pid: int) -> int:
    """Those that wait to be accepted among them, and those that are on their way inside a message."""
    sockets = sum(
        _QUEUED_LETTERS if fields[4] == _DATAGRAMS else 1 for fields in _table(pid, "unix", columns=5)
    )
    to_the_kernel = sum(fields[2] != "0" for fields in _table(pid, "netlink", columns=3))
    return (sockets + to_the_kernel) * _buffer_bytes()


def _connections(pid: int) -> int:
    """Of these the queues are known, in bytes that were sent: what holds them takes up to as much again."""
    return sum(
        max(2 * _queued(fields[4]), _LEAST_OF_A_CONNECTION)
        for name in ("tcp", "tcp6")
        for fields in _table(pid, name, columns=5)
        if fields[3] not in _EMPTY_STATES
    )


def _datagrams(pid: int) -> int:
    return sum(_queued(fields[4]) for name in ("udp", "udp6") for fields in _table(pid, name, columns=5))


def _queued(queues: str) -> int:
    sending, _, received = queues.partition(":")
    return int(sending, 16) + int(received, 16)


def _files_in_memory(pid: int) -> int:
    total = 0
    for place in _IN_MEMORY:
        try:
            system = os.statvfs(f"/proc/{pid}/root/{place}")
        except OSError:
            continue
        total += (system.f_blocks - system.f_bfree) * system.f_frsize
    return total


def _table(pid: int, name: str, *, columns: int) -> Iterator[list[str]]:
    """Names of sockets may hold anything, line ends too: a line that is none of the table is left out."""
    try:
        lines = Path(f"/proc/{pid}/net/{name}").read_text(errors="replace").split("\n")
    except OSError:
        return
    for line in lines[1:]:
        fields = line.split(maxsplit=columns)
        if len(fields) >= columns and fields[0].endswith(":") == (name != "netlink"):
            yield fields


@cache
def _buffer_bytes() -> int:
    return int(Path("/proc/sys/net/core/wmem_default").read_text())
