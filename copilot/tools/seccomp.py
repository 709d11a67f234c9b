"""Which system calls a program in the sandbox does not have, as the kernel reads it (A23.1).

Memory that belongs to no process and lies in no file is seen by nobody who measures; keys are in no namespace; the
others are there for programs of another kind, and have been ways out.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager

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
        },
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
        },
    ),
}
_LOAD, _EQUALS, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE = 0, 4  # where they stand in what the filter sees
_OTHER_NUMBERS = 0x4000_0000  # x86-64 has every call twice; the second kind is nobody's
_ALLOW, _KILL, _REFUSE = 0x7FFF_0000, 0x8000_0000, 0x0005_0000 | errno.ENOSYS


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


def _compiled(architecture: int, barred: dict[str, int]) -> bytes:
    """What is barred does not exist, so that programs take another way; a foreign architecture's call ends them."""
    numbers = sorted(barred.values())
    to_refusal = len(numbers) + 1  # instructions from the first comparison to the last line
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUALS, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, to_refusal, 0, _OTHER_NUMBERS),
        *((_EQUALS, to_refusal - place, 0, number) for place, number in enumerate(numbers, 1)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *line) for line in lines)
