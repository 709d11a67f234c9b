"""Runs programs where they can do no harm: in bubblewrap, without network, in one folder, within limits (A23)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.conf import settings

from copilot.tools import footprint, seccomp

MAX_CAPTURED_BYTES = 2**20  # of each stream; the rest is counted and thrown away
MAX_MEMORY_BYTES = 2**30
MAX_FILE_BYTES = 200 * 2**20
MAX_PROCESSES = 256
MAX_OPEN_FILES = 1_024  # of each process …
MAX_DESCRIPTORS = (
    16_384  # … and of all together: a pipe may take 8 KiB of the kernel, and looking at them takes time
)
TEMPORARY_BYTES = 256 * 2**20  # /tmp and /dev/shm live in memory
MAX_FOLDER_BYTES = 2**30
WATCH_SECONDS = (
    0.25  # a look costs about a millisecond; in this time a program can take some hundred MiB more
)
PROBE_SECONDS = 10.0
ASKED_SECONDS = 2.0  # what a program has to leave by itself when the turn is stopped (A1.7)
GONE_SECONDS = 1.5  # a killed namespace is gone at once; waiting longer would make a stop late (A1.7)
FOLDER = "/workspace"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 - what programs keep for themselves is not the user's
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TMPDIR": "/tmp",  # noqa: S108
    "USER": "agent",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}
NOBODY = 65534
_CHUNK_BYTES = 64 * 1024
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_CONFIGURATION = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types")
_SET_LIMITS = (
    f"ulimit -c 0 -u {MAX_PROCESSES} -n {MAX_OPEN_FILES} -f {MAX_FILE_BYTES // 1024} -v {MAX_MEMORY_BYTES // 1024} || exit 125; "
    'exec "$@"'
)
# The root of the sandbox lies in memory too, and would be writable.
_LIMITS = ("--remount-ro", "/", "--", "/bin/bash", "-c", _SET_LIMITS, "limits")


@dataclass(frozen=True, kw_only=True)
class Captured:
    """What came out of one stream; `left_out` bytes followed that nobody kept."""

    text: str
    left_out: int


@dataclass(frozen=True, kw_only=True)
class Finished:
    stdout: Captured
    stderr: Captured
    exit_code: int
    timed_out: bool
    excess: str  # why it was stopped before its time, or nothing


def missing() -> str:
    """Why nothing can be run here, or nothing; found out once per process (A23.2)."""
    return _probed(settings.SANDBOX_PROGRAM)


@cache
def _probed(program: str) -> str:
    if not program:
        return "The sandbox is switched off (SANDBOX_PROGRAM is empty)."
    found = shutil.which(program)
    if found is None:
        return f"The sandbox is missing: {program} is not installed (Debian and Ubuntu: apt-get install bubblewrap)."
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "The sandbox does not work for the administrator's account without setpriv (util-linux)."
    return seccomp.missing() or _tried()


def _tried() -> str:
    try:
        with seccomp.filter_file() as barred:
            tried = subprocess.run(  # noqa: S603 - our own words only
                [*_walls(barred), *_LIMITS, "/usr/bin/true"],
                capture_output=True,
                timeout=PROBE_SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
                pass_fds=(barred,),
            )
    except (OSError, subprocess.TimeoutExpired):
        return "The sandbox does not work here: it did not start."
    if tried.returncode == 0:
        return ""
    said = tried.stderr.decode(errors="replace").strip().splitlines()
    return f"The sandbox does not work here: {said[-1][:200] if said else f'exit {tried.returncode}'}"


def prepare(folder: Path) -> None:
    """Make a folder and what lies in it the sandboxed user's own."""
    if os.geteuid() != 0:
        return
    for parent, _, names in os.walk(folder):
        for path in (parent, *(os.path.join(parent, name) for name in names)):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


async def run(program: Sequence[str], *, folder: Path, workdir: str = "", seconds: float) -> Finished:
    """Run a program in the sandbox; whatever happens, cancellation too, none of its processes is left."""
    process = await _started(program, folder, workdir)
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr = _Stream(), _Stream()
    reading = asyncio.create_task(_read(stdout.read(process.stdout), stderr.read(process.stderr)))
    waiting = asyncio.create_task(process.wait())
    watching = asyncio.create_task(_excess(process.pid, folder))
    try:
        done, _ = await asyncio.wait(
            {waiting, watching}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
    except asyncio.CancelledError:
        await asyncio.shield(_asked_to_leave(process.pid, waiting))
        raise
    finally:
        watching.cancel()
        await asyncio.shield(_end(process, reading))
    code = process.returncode if process.returncode is not None else -signal.SIGKILL
    return Finished(
        stdout=stdout.captured(),
        stderr=stderr.captured(),
        exit_code=code,
        timed_out=not done,
        excess=watching.result() if watching in done else "",
    )


async def _started(program: Sequence[str], folder: Path, workdir: str) -> asyncio.subprocess.Process:
    with seccomp.filter_file() as barred:
        return await asyncio.create_subprocess_exec(
            *_command(barred, folder, workdir),
            *program,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={},
            start_new_session=True,
            limit=_CHUNK_BYTES,
            pass_fds=(barred,),
        )


async def _excess(pid: int, folder: Path) -> str:
    """Returns when the program takes too much: limits of the kernel hold for each process, not for all together."""
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        if await asyncio.to_thread(footprint.descriptors, pid) > MAX_DESCRIPTORS:
            return f"it held more than {MAX_DESCRIPTORS:,} files open"
        if await asyncio.to_thread(footprint.memory_bytes, pid) > MAX_MEMORY_BYTES:
            return f"it took more than {MAX_MEMORY_BYTES // 2**30} GiB of memory"
        if await asyncio.to_thread(footprint.disk_bytes, pid, folder) > MAX_FOLDER_BYTES:
            return f"it wrote more than {MAX_FOLDER_BYTES // 2**30} GiB"


async def _read(*streams: Awaitable[None]) -> None:
    await asyncio.gather(*streams)


async def _asked_to_leave(pid: int, waiting: asyncio.Task[int]) -> None:
    """A stop is no crash: what runs may finish its line. The walls themselves are not asked, they would fall at once."""
    for member in await asyncio.to_thread(footprint.descendants, pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(member, signal.SIGTERM)
    await asyncio.wait({waiting}, timeout=ASKED_SECONDS)


async def _end(process: asyncio.subprocess.Process, reading: asyncio.Task[None]) -> None:
    """Kill what still runs: with its first process the kernel ends every other of the namespace."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    await asyncio.wait({reading}, timeout=GONE_SECONDS)
    reading.cancel()


class _Stream:
    def __init__(self) -> None:
        self._kept = bytearray()
        self._left_out = 0

    async def read(self, pipe: asyncio.StreamReader) -> None:
        while chunk := await pipe.read(_CHUNK_BYTES):
            room = MAX_CAPTURED_BYTES - len(self._kept)
            self._kept += chunk[:room]
            self._left_out += max(len(chunk) - room, 0)

    def captured(self) -> Captured:
        return Captured(text=self._kept.decode(errors="replace"), left_out=self._left_out)


# --- the walls ---------------------------------------------------------------------------------------


def _command(barred: int, folder: Path, workdir: str) -> list[str]:
    inside = os.path.normpath(os.path.join(FOLDER, workdir)) if workdir else FOLDER
    return [*_walls(barred), "--bind", str(folder), FOLDER, "--chdir", inside, *_LIMITS]


def _walls(barred: int) -> list[str]:
    """Every namespace its own and none below it, the system read-only, nothing of our environment."""
    return [
        *_as_nobody(),
        shutil.which(settings.SANDBOX_PROGRAM) or settings.SANDBOX_PROGRAM,
        # Who makes a namespace below this one is its administrator: it could mount memory without end.
        *("--unshare-user", "--disable-userns", "--seccomp", str(barred)),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"),
        *("--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--clearenv"),
        *(word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)),
        *_system(),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(TEMPORARY_BYTES), "--tmpfs", "/tmp"),  # noqa: S108
        *("--size", str(TEMPORARY_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108
    ]


def _as_nobody() -> list[str]:
    """The kernel counts no processes of the administrator's, so a fork bomb would not end."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"]


def _system() -> list[str]:
    """Programs and libraries, nothing else of this machine; our own code, should it lie among them, is covered."""
    words = ["--ro-bind", "/usr", "/usr"]
    for place in _SYSTEM:
        if os.path.islink(place):
            words += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            words += ["--ro-bind", place, place]
    for place in _CONFIGURATION:
        words += ["--ro-bind-try", place, place]
    code = str(settings.BASE_DIR)
    if code.startswith("/usr/"):
        words += ["--tmpfs", code]
    return words
