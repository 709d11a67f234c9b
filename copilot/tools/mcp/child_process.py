"""Run a program that dies with its parent process, together with everything it started.

This is a script of its own, without imports of ours: `python child_process.py parent program argument …`. The
kernel tells it when its parent dies, even by kill -9. Then, and when the program ends, everything that the
program started is killed. Processes that left the process group or lost their parent are found too, because
orphans become children of this script.
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
NOT_STARTED_EXIT_CODE = 127  # as a shell exits when a program is not found


def main(parent: int, command: list[str]) -> int:
    if os.getpgid(0) != os.getpid():
        os.setsid()  # so that killing the group kills nothing else
    signal.signal(signal.SIGTERM, _kill_all)
    if sys.platform == "linux":
        kernel = ctypes.CDLL(None)
        kernel.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        kernel.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died before prctl took effect
            return NOT_STARTED_EXIT_CODE
    try:
        child = subprocess.Popen(command)  # noqa: S603 - an administrator wrote it
    except OSError:
        return NOT_STARTED_EXIT_CODE
    child.wait()
    _kill_all()
    return 0


def _kill_all(*signalled: object) -> None:
    """Kill children until none is left: orphans of one round are our children in the next.

    Whatever keeps forking is killed with the process group.
    """
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
