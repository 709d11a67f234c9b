"""Compile the seccomp filter of the sandbox: the system calls that its programs may not make.

Blocked are calls that inspect other processes (such as the first process of the sandbox, which must die with
the worker), that make or enter namespaces and mounts, that use kernel keys, which have no namespace, and that
keep memory where it cannot be measured: memfds, shared segments, inotify watches. Also blocked are calls for
administrators, calls that were ways out of other sandboxes, and every call newer than the ones reviewed here.
Most kinds of sockets are blocked too. Buffers of the others keep their size, because `resources` counts on
it: a request for a larger one pretends to succeed, as when the kernel clamps it.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple


class _CheckedSyscalls(NamedTuple):
    """Numbers of the calls whose arguments are checked."""

    socket: int
    socketpair: int
    setsockopt: int
    clone: int
    ioctl: int


class _SyscallTable(NamedTuple):
    mark: int  # the kernel's id of the architecture
    blocked: dict[str, int]
    checked: _CheckedSyscalls


_BLOCKED_EVERYWHERE = {  # since 2019 a call has the same number on every architecture
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,  # its flags are in memory, which a filter cannot read; libraries fall back to clone
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "statmount": 457,
    "listmount": 458,
}
_NEWEST_REVIEWED = 462  # mseal
_ARCHITECTURES = {
    "x86_64": _SyscallTable(
        mark=0xC000_003E,
        blocked={
            "ptrace": 101,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "kcmp": 312,
            "unshare": 272,
            "setns": 308,
            "mount": 165,
            "umount2": 166,
            "pivot_root": 155,
            "chroot": 161,
            "name_to_handle_at": 303,
            "open_by_handle_at": 304,
            "memfd_create": 319,
            "shmget": 29,
            "msgget": 68,
            "semget": 64,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "perf_event_open": 298,
            "bpf": 321,
            "userfaultfd": 323,
            "inotify_init": 253,
            "inotify_init1": 294,
            "fanotify_init": 300,
            "fanotify_mark": 301,
            "syslog": 103,
            "acct": 163,
            "quotactl": 179,
            "swapon": 167,
            "swapoff": 168,
            "reboot": 169,
            "settimeofday": 164,
            "clock_settime": 227,
            "init_module": 175,
            "finit_module": 313,
            "delete_module": 176,
            "kexec_load": 246,
            "kexec_file_load": 320,
            "migrate_pages": 256,
            "move_pages": 279,
            "modify_ldt": 154,
            "iopl": 172,
            "ioperm": 173,
        },
        checked=_CheckedSyscalls(socket=41, socketpair=53, setsockopt=54, clone=56, ioctl=16),
    ),
    "aarch64": _SyscallTable(
        mark=0xC000_00B7,
        blocked={
            "ptrace": 117,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "kcmp": 272,
            "unshare": 97,
            "setns": 268,
            "mount": 40,
            "umount2": 39,
            "pivot_root": 41,
            "chroot": 51,
            "name_to_handle_at": 264,
            "open_by_handle_at": 265,
            "memfd_create": 279,
            "shmget": 194,
            "msgget": 186,
            "semget": 190,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "perf_event_open": 241,
            "bpf": 280,
            "userfaultfd": 282,
            "inotify_init1": 26,
            "fanotify_init": 262,
            "fanotify_mark": 263,
            "syslog": 116,
            "acct": 89,
            "quotactl": 60,
            "swapon": 224,
            "swapoff": 225,
            "reboot": 142,
            "settimeofday": 170,
            "clock_settime": 112,
            "init_module": 105,
            "finit_module": 273,
            "delete_module": 106,
            "kexec_load": 104,
            "kexec_file_load": 294,
            "migrate_pages": 238,
            "move_pages": 239,
        },
        checked=_CheckedSyscalls(socket=198, socketpair=199, setsockopt=208, clone=220, ioctl=29),
    ),
}
# Flags of clone: NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET
_NAMESPACES = 0x2_0000 | 0x200_0000 | 0x400_0000 | 0x800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type into a terminal
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_USUAL_PROTOCOLS = (0, 6, 17)  # the default of the socket type, TCP, UDP
_SOCKET_LEVEL, _BUFFER_SIZES = 1, (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, and their FORCE variants
_LOAD, _EQUALS, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
_FIRST_ARGUMENT, _ARGUMENT_BYTES = 16, 8  # the lower half of each argument, which is all of an int
_ALLOW, _KILL, _ERROR = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_REFUSE, _PRETEND = _ERROR | errno.ENOSYS, _ERROR  # errno 0 is a success that did nothing

_Instruction = tuple[int, int, int, int]


def find_seccomp_problem() -> str:
    machine = platform.machine()
    return (
        ""
        if machine in _ARCHITECTURES
        else f"The sandbox has no system call filter for this processor ({machine})."
    )


@contextmanager
def open_filter() -> Iterator[int]:
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(_compile_filter(platform.machine()))
        yield reading
    finally:
        os.close(reading)


@cache
def _compile_filter(machine: str) -> bytes:
    """Compile the filter. Blocked calls look unimplemented, so that programs fall back to another way.

    Calls of a foreign architecture kill the program. x86-64 has every call a second time with a high bit in
    its number; these count as newer than all that was reviewed.
    """
    architecture = _ARCHITECTURES[machine]
    lines: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUALS, 1, 0, architecture.mark),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _NEWEST_REVIEWED + 1),
        (_RETURN, 0, 0, _REFUSE),
    ]
    for number in (*architecture.blocked.values(), *_BLOCKED_EVERYWHERE.values()):
        lines += _when_equal(number, [(_RETURN, 0, 0, _REFUSE)])
    checked = architecture.checked
    for number in (checked.socket, checked.socketpair):
        lines += _when_equal(number, _socket_rules())
    lines += _when_equal(checked.setsockopt, _setsockopt_rules())
    lines += _when_equal(checked.clone, _clone_rules())
    lines += _when_equal(
        checked.ioctl, [_load_argument(1), *_match_any(_TERMINAL_INPUT, _ERROR | errno.EPERM, _ALLOW)]
    )
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _when_equal(number: int, body: list[_Instruction]) -> list[_Instruction]:
    """Run `body` for one number. It returns on every path, so the number stays loaded for the next check."""
    return [(_EQUALS, 0, len(body), number), *body]


def _socket_rules() -> list[_Instruction]:
    return [
        _load_argument(0),
        *_when_equal(_UNIX, [(_RETURN, 0, 0, _ALLOW)]),
        *_when_equal(_NETLINK, [(_RETURN, 0, 0, _ALLOW)]),
        (_EQUALS, 2, 0, _INET),
        (_EQUALS, 1, 0, _INET6),
        (_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT),
        _load_argument(2),
        *_match_any(_USUAL_PROTOCOLS, _ALLOW, _ERROR | errno.EPROTONOSUPPORT),
    ]


def _setsockopt_rules() -> list[_Instruction]:
    return [
        _load_argument(1),
        (_EQUALS, 1, 0, _SOCKET_LEVEL),
        (_RETURN, 0, 0, _ALLOW),
        _load_argument(2),
        *_match_any(_BUFFER_SIZES, _PRETEND, _ALLOW),
    ]


def _clone_rules() -> list[_Instruction]:
    return [
        _load_argument(0),
        (_ANY_BIT, 0, 1, _NAMESPACES),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _load_argument(place: int) -> _Instruction:
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + place * _ARGUMENT_BYTES)


def _match_any(values: tuple[int, ...], then: int, otherwise: int) -> list[_Instruction]:
    return [
        *((_EQUALS, len(values) - place, 0, value) for place, value in enumerate(values)),
        (_RETURN, 0, 0, otherwise),
        (_RETURN, 0, 0, then),
    ]
