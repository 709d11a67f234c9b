"""Runs a program that dies with the process that asked for it, and with it whatever it started (A28.c2).

A script of its own, without imports of ours: `python leash.py program argument …`. The kernel tells it when its
parent dies, also by kill -9; then, and when the program ends, the whole process group goes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
NOT_STARTED = 127  # what a shell says of a program it cannot find


def main(parent: int, command: list[str]) -> int:
    if os.getpgid(0) != os.getpid():
        os.setsid()  # the group that goes is ours alone
    signal.signal(signal.SIGTERM, _kill_all)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel was asked
            return NOT_STARTED
    try:
        child = subprocess.Popen(command)  # noqa: S603 - an administrator wrote it
    except OSError:
        return NOT_STARTED
    child.wait()
    _kill_all()
    return 0


def _kill_all(*signalled: object) -> None:
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
