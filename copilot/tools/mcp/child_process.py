"""Run a program that dies with the process that asked for it, and with it whatever it started.

A script of its own, without imports of ours: `python leash.py parent program argument …`. The kernel tells it when its
parent dies, also by kill -9; then, and when the program ends, everything goes that the program started. What has left its
process group or lost its parent is found all the same: orphans become children of this script.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MAX_KILL_ROUNDS = 100
NOT_STARTED_EXIT_CODE = 127  # what a shell says of a program it cannot find


def main(parent: int, command: list[str]) -> int:
    if os.getpgid(0) != os.getpid():
        os.setsid()  # the group that goes is ours alone
    signal.signal(signal.SIGTERM, _kill_all)
    if sys.platform == "linux":
        kernel = ctypes.CDLL(None)
        kernel.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        kernel.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel was asked
            return NOT_STARTED_EXIT_CODE
    try:
        child = subprocess.Popen(command)  # noqa: S603 - an administrator wrote it
    except OSError:
        return NOT_STARTED_EXIT_CODE
    child.wait()
    _kill_all()
    return 0


def _kill_all(*signalled: object) -> None:
    """Until nothing is left: what one round orphans is our child in the next. Who forks on and on goes with its group."""
    for _ in range(_MAX_KILL_ROUNDS):
        for pid in _list_children():
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError, PermissionError):
                continue
    os.killpg(0, signal.SIGKILL)


def _list_children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
