"""Choose the account without rights that root runs foreign programs as, and give root's rights up for it.

The sandbox and stdio MCP servers both run programs that nobody of this project wrote.
"""

from __future__ import annotations

import os
import pwd
from typing import NamedTuple


class Account(NamedTuple):
    uid: int
    gid: int


def unprivileged_account(uid: int = 0) -> Account | None:
    """As root: the account that foreign programs run as, the given one or else `nobody`.

    None: we are not root, or there is none.
    """
    if os.geteuid() != 0:
        return None
    try:
        found = pwd.getpwuid(uid) if uid else pwd.getpwnam("nobody")
    except KeyError:
        return Account(uid, uid) if uid else None  # a number needs no name
    return Account(found.pw_uid, found.pw_gid) if found.pw_uid and found.pw_gid else None


def words_to_run_as(account: Account) -> list[str]:
    """Put before a command, they give up root's rights for good."""
    return [
        "setpriv",
        f"--reuid={account.uid}",
        f"--regid={account.gid}",
        "--clear-groups",
        "--inh-caps=-all",
        "--ambient-caps=-all",
        "--bounding-set=-all",
    ]
