"""Choose the unprivileged account that root runs foreign programs as, and drop root's rights for it.

The sandbox and stdio MCP servers both run programs that are not part of this project.
"""

from __future__ import annotations

import os
import pwd
import shutil
from typing import NamedTuple


class UnixAccount(NamedTuple):
    uid: int
    gid: int


def get_unprivileged_account(uid: int = 0) -> UnixAccount | None:
    """Return the account that foreign programs run as: the given one, else `nobody`.

    None if we are not root, or if there is no such account.
    """
    if os.geteuid() != 0:
        return None
    try:
        found = pwd.getpwuid(uid) if uid else pwd.getpwnam("nobody")
    except KeyError:
        return UnixAccount(uid, uid) if uid else None  # a uid needs no name
    return UnixAccount(found.pw_uid, found.pw_gid) if found.pw_uid and found.pw_gid else None


def find_account_problem(uid: int = 0) -> str:
    """Return why foreign programs cannot run here, or nothing. They never run as root."""
    if os.geteuid() != 0:
        if uid in (0, os.geteuid()):
            return ""
        return "SANDBOX_UID is set, but only a worker that runs as root can start programs as another account. Unset it."
    if get_unprivileged_account(uid) is None:
        return (
            "The worker runs as root, and there is no account to run programs as. "
            "Set SANDBOX_UID, or start it as another user."
        )
    if shutil.which("setpriv") is None:
        return (
            "The worker runs as root and cannot start programs as another account without setpriv "
            "(package util-linux)."
        )
    return ""


def build_setpriv_command(account: UnixAccount | None) -> list[str]:
    """Return the prefix that drops root's rights for good; empty for None."""
    if account is None:
        return []
    return [
        "setpriv",
        f"--reuid={account.uid}",
        f"--regid={account.gid}",
        "--clear-groups",
        "--inh-caps=-all",
        "--ambient-caps=-all",
        "--bounding-set=-all",
    ]
