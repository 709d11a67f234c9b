"""Run a worker as a container does: under deploy/seccomp.json and without privileges.

`python -m tests.support.container_worker profile folder command` prints what the sandbox says of itself, what a command in it
puts out, and which calls the profile lets through that it should not.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import sys
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

from copilot.tools.sandbox import bubblewrap  # noqa: E402

ACCOUNT = 54321
NO_NEW_PRIVILEGES = 38
ALLOW, ERRNO = 0x7FFF_0000, 0x0005_0000
BARRED = (
    "bpf",
    "keyctl",
    "ptrace",
    "perf_event_open",
    "io_uring_setup",
    "init_module",
    "open_by_handle_at",
    "setns",
)


def give_rights_up() -> None:
    os.setgroups([])
    os.setresgid(ACCOUNT, ACCOUNT, ACCOUNT)
    os.setresuid(ACCOUNT, ACCOUNT, ACCOUNT)
    assert ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0


def load_profile(path: str) -> ctypes.CDLL:
    profile = json.loads(Path(path).read_text())
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_rule_add_array.argtypes = [
        *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
    ]
    library.seccomp_load.argtypes = [ctypes.c_void_p]
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    rules = library.seccomp_init(ERRNO | profile["defaultErrnoRet"])
    for group in profile["syscalls"]:
        assert group["action"] == "SCMP_ACT_ALLOW"
        for name in group["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number != -1:  # newer than the library
                assert library.seccomp_rule_add_array(rules, ALLOW, number, 0, None) == 0, name
    assert library.seccomp_load(rules) == 0
    return library


def let_through(library: ctypes.CDLL) -> list[str]:
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    for name in BARRED:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if libc.syscall(number, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.ENOSYS:
            found.append(name)
    return found


def main(profile: str, folder: str, command: str) -> None:
    give_rights_up()
    library = load_profile(profile)
    missing = bubblewrap.find_sandbox_problem()
    said = ""
    if not missing:
        words = ["/bin/bash", "-c", command]
        finished = asyncio.run(bubblewrap.run_program(words, folder=Path(folder), seconds=60))
        said = finished.stdout.text + finished.stderr.text
    print(json.dumps({"missing": missing, "said": said, "let_through": let_through(library)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
