"""Lets root run a server as a user without rights: Postgres refuses to run with root's."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import signal
import sys
from pathlib import Path

from config.binaries import ServerProblem

_SERVER_USER = "nobody"


def give(path: Path) -> None:
    """As root: hand a file or directory to the servers' user."""
    if os.geteuid() == 0:
        shutil.chown(path, _SERVER_USER, _group_of(_SERVER_USER))


def demotion(directory: Path, kindness: signal.Signals) -> list[str]:
    """As root: run as a user without rights, told to stop when we die; otherwise nothing."""
    if os.geteuid() != 0:
        return []
    prefix = [
        "setpriv",
        f"--reuid={_SERVER_USER}",
        f"--regid={_group_of(_SERVER_USER)}",
        "--clear-groups",
        f"--pdeathsig={kindness.name}",
    ]
    if not shutil.which(prefix[0]):
        raise ServerProblem("As root, embedded servers need `setpriv` (package util-linux).")
    if not all(_open_to_others(path) for path in (directory, Path(sys.prefix))):
        prefix += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]  # a project below /root
    return prefix


def _open_to_others(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def _group_of(user: str) -> str:
    return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name
