"""Which system calls a program in the sandbox does not have, as the kernel reads it (A23.1).

Memory that belongs to no process and lies in no file is seen by nobody who measures; keys are in no namespace; watches of
files, and what they note for a program that does not read it, are bounded for a user of the machine only, so that one
program could take what others need. The others are there for programs of another kind, and have been ways out. So are
most kinds of sockets; of the usual ones the buffers keep their size, as `buffers` counts them: who asks for more is told
yes, as when the kernel cuts it.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class _Sockets(NamedTuple):
    """Numbers of the calls whose arguments are looked at."""

    socket: int
    socketpair: int
    setsockopt: int


_BARRED = {  # per architecture: its mark, and numbers of calls
    "x86_64": (
        0xC000_003E,
        {
            "memfd_create": 319,
            "memfd_secret": 447,
            "shmget": 29,
            "msgget": 68,
            "semget": 64,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "perf_event_open": 298,
            "bpf": 321,
            "userfaultfd": 323,
            "io_uring_setup": 425,
            "inotify_init": 253,
            "inotify_init1": 294,
            "fanotify_init": 300,
        },
        _Sockets(socket=41, socketpair=53, setsockopt=54),
    ),
    "aarch64": (
        0xC000_00B7,
        {
            "memfd_create": 279,
            "memfd_secret": 447,
            "shmget": 194,
            "msgget": 186,
            "semget": 190,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "perf_event_open": 241,
            "bpf": 280,
            "userfaultfd": 282,
            "io_uring_setup": 425,
            "inotify_init1": 26,
            "fanotify_init": 262,
        },
        _Sockets(socket=198, socketpair=199, setsockopt=208),
    ),
}
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_USUAL_PROTOCOLS = (0, 6, 17)  # the kind's own, TCP, UDP
_SOCKET_LEVEL, _BUFFER_SIZES = 1, (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, and both by force
_LOAD, _EQUALS, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE = 0, 4  # where they stand in what the filter sees
_OTHER_NUMBERS = 0x4000_0000  # x86-64 has every call twice; the second kind is nobody's
_FIRST_ARGUMENT, _ARGUMENT_BYTES = 16, 8  # of each the lower half, which is all of an int
_ALLOW, _KILL, _ERROR = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_REFUSE, _PRETEND = _ERROR | errno.ENOSYS, _ERROR  # an error of none is a success that did nothing

_Line = tuple[int, int, int, int]


def missing() -> str:
    machine = platform.machine()
    return "" if machine in _BARRED else f"The sandbox knows no filter for this processor ({machine})."


@contextmanager
def filter_file() -> Iterator[int]:
    """A descriptor that bubblewrap reads the filter from, once."""
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(_compiled(*_BARRED[platform.machine()]))
        yield reading
    finally:
        os.close(reading)


def _compiled(architecture: int, barred: dict[str, int], sockets: _Sockets) -> bytes:
    """What is barred does not exist, so that programs take another way; a foreign architecture's call ends them."""
    lines: list[_Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUALS, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _OTHER_NUMBERS),
        (_RETURN, 0, 0, _REFUSE),
    ]
    for number in barred.values():
        lines += _on(number, [(_RETURN, 0, 0, _REFUSE)])
    for number in (sockets.socket, sockets.socketpair):
        lines += _on(number, _usual_sockets())
    lines += _on(sockets.setsockopt, _buffers_as_they_are())
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _on(number: int, body: list[_Line]) -> list[_Line]:
    """`body` returns on each of its ways, so that the number is still there for the next."""
    return [(_EQUALS, 0, len(body), number), *body]


def _usual_sockets() -> list[_Line]:
    return [
        _argument(0),
        *_on(_UNIX, [(_RETURN, 0, 0, _ALLOW)]),
        *_on(_NETLINK, [(_RETURN, 0, 0, _ALLOW)]),
        (_EQUALS, 2, 0, _INET),
        (_EQUALS, 1, 0, _INET6),
        (_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT),
        _argument(2),
        *_one_of(_USUAL_PROTOCOLS, _ALLOW, _ERROR | errno.EPROTONOSUPPORT),
    ]


def _buffers_as_they_are() -> list[_Line]:
    return [
        _argument(1),
        (_EQUALS, 1, 0, _SOCKET_LEVEL),
        (_RETURN, 0, 0, _ALLOW),
        _argument(2),
        *_one_of(_BUFFER_SIZES, _PRETEND, _ALLOW),
    ]


def _argument(place: int) -> _Line:
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + place * _ARGUMENT_BYTES)


def _one_of(values: tuple[int, ...], then: int, otherwise: int) -> list[_Line]:
    return [
        *((_EQUALS, len(values) - place, 0, value) for place, value in enumerate(values)),
        (_RETURN, 0, 0, otherwise),
        (_RETURN, 0, 0, then),
    ]
