"""Run programs in bubblewrap: without network, in one folder, within limits, and with no process left
afterwards.

bubblewrap starts the first process of a new set of namespaces and tells us its pid. We hold that process by a
pidfd before the program may begin. When a call ends, for whatever reason, we kill the first process; the
kernel kills every other process of its namespace with it, and reports its end only when none is left. Until
then nothing that the program wrote is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.conf import settings

from config.core import privileges
from copilot.tools.base import ToolError
from copilot.tools.sandbox import resources, seccomp
from copilot.tools.sandbox.directory_tree import DirectoryTree

MAX_CAPTURED_BYTES = 2**20  # of each stream; the rest is counted and dropped
MAX_MEMORY_BYTES = 2**30
MAX_FILE_BYTES = 200 * 2**20
MAX_PROCESSES = 256
MAX_OPEN_FILES = 1_024  # of each process
MAX_TOTAL_OPEN_FILES = (
    16_384  # of all processes: a pipe may take 8 KiB in the kernel, and counting takes time
)
MAX_TMP_BYTES = 256 * 2**20  # /tmp and /dev/shm live in memory
MAX_FOLDER_BYTES = 2**30
MIN_FREE_BYTES = 2**29  # of the disk; below this every program is stopped
MIN_FREE_NAMES = 10_000  # inodes of the disk, likewise
WATCH_INTERVAL_SECONDS = (
    0.25  # a check takes about a millisecond; meanwhile a program can take some hundred MiB
)
PROBE_TIMEOUT_SECONDS = 10.0
START_TIMEOUT_SECONDS = 30.0  # bubblewrap itself takes a few milliseconds
NICENESS = 10  # the worker's own loop comes first
TERM_GRACE_SECONDS = 2.0  # for a program to exit by itself when the turn is stopped
KILL_WAIT_SECONDS = 1.5  # a killed namespace is gone at once; a longer wait would delay a stop
CLEANUP_WAIT_SECONDS = (
    20.0  # freeing much memory takes a moment, and a disk may hang; after that nothing is read
)
WORKSPACE_MOUNT = "/workspace"
SANDBOX_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 - private files of programs do not belong to the workspace
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TMPDIR": "/tmp",  # noqa: S108
    "USER": "agent",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}
_CHUNK_BYTES = 64 * 1024
_SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_COVERED_FOLDERS = ("/usr/local/etc", "/usr/etc")  # configuration of this machine, which may hold secrets
_CONFIGURATION_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types")
# Files of /proc that reveal keys and addresses of the kernel.
_HIDDEN_PROC_FILES = ("keys", "key-users", "kallsyms", "kcore", "timer_list", "sched_debug", "latency_stats")
# The program waits at the gate until its first process is held. If the machine runs out of memory, it is killed first.
_LIMITS_SCRIPT = (
    'read -r -N 1 <&"$1" || exit 125; eval "exec $1<&-"; shift; echo 1000 > /proc/self/oom_score_adj; '
    f"ulimit -c 0 -u {MAX_PROCESSES} -n {MAX_OPEN_FILES} -f {MAX_FILE_BYTES // 1024} -v {MAX_MEMORY_BYTES // 1024} "
    '-q 0 -i 1024 || exit 125; exec "$@"'
)
_ADMIT_BYTE = b"g"


@dataclass(frozen=True, kw_only=True)
class CapturedOutput:
    """The captured output of one stream; `left_out` more bytes were dropped."""

    text: str
    left_out: int


@dataclass(frozen=True, kw_only=True)
class ProgramResult:
    stdout: CapturedOutput
    stderr: CapturedOutput
    exit_code: int
    timed_out: bool
    excess: str  # which limit it was stopped for, or nothing


def find_sandbox_problem() -> str:
    """Return why nothing can be run here, or nothing. The answer is cached per process."""
    return _probe_once(settings.SANDBOX_PROGRAM, settings.SANDBOX_UID)


@cache
def _probe_once(program: str, uid: int) -> str:
    if not program:
        return "The sandbox is switched off (SANDBOX_PROGRAM is empty)."
    found = shutil.which(program)
    if found is None:
        return f"The sandbox is missing: {program} is not installed (Debian and Ubuntu: apt-get install bubblewrap)."
    return privileges.find_account_problem(settings.SANDBOX_UID) or seccomp.find_seccomp_problem() or _probe()


def _probe() -> str:
    """Run `true` like any other program, and check that it can be held and measured."""
    try:
        with _Pipes() as channels, tempfile.TemporaryDirectory(prefix="pilothouse-probe-") as folder:
            prepare_folder(Path(folder))
            started = subprocess.Popen(  # noqa: S603 - our own words only
                [*_build_command(channels, Path(folder), ""), "/usr/bin/true"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={},
                pass_fds=channels.inherited,
            )
            try:
                channels.close_inherited()
                return _judge_probe(started, channels)
            finally:
                started.kill()
                started.communicate()
    except OSError:
        return "The sandbox does not work here: it did not start."


def _judge_probe(started: subprocess.Popen[bytes], channels: _Pipes) -> str:
    report = bytearray()
    while select.select([channels.report], [], [], PROBE_TIMEOUT_SECONDS)[0] and (
        piece := os.read(channels.report, 4096)
    ):
        report += piece
    first = _InitProcess.from_report(bytes(report), started.pid)
    if first is not None:
        try:
            os.listdir(f"/proc/{first.pid}/fd")
        except PermissionError:
            return "The sandbox does not work here: memory of programs cannot be measured (root needs CAP_SYS_PTRACE)."
        except OSError:
            pass  # it ended at once, and stderr says why
        finally:
            first.close()
    channels.admit()
    try:
        _, stderr = started.communicate(timeout=PROBE_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return "The sandbox does not work here: it did not end."
    if started.returncode == 0 and first is not None:
        return ""
    lines = stderr.decode(errors="replace").strip().splitlines()
    return f"The sandbox does not work here: {lines[-1][:200] if lines else f'exit {started.returncode}'}"


def prepare_folder(folder: Path) -> None:
    account = privileges.get_unprivileged_account(settings.SANDBOX_UID)
    if account is not None:
        with DirectoryTree(folder) as tree:
            tree.change_owner(account.uid, account.gid)


async def run_program(
    program: Sequence[str], *, folder: Path, workdir: str = "", seconds: float
) -> ProgramResult:
    """Run a program in the sandbox; whatever happens, even cancellation, none of its processes is left.

    Raises ToolError rather than return while one of them may still write to the folder.
    """
    with _Pipes() as channels:
        process = await _start_process(program, channels, folder, workdir)
        run = _SandboxRun(process)
        wait_seconds = KILL_WAIT_SECONDS
        try:
            await run.admit_program(channels)
            timed_out, excess = await run.wait_until_over(folder, seconds)
            wait_seconds = CLEANUP_WAIT_SECONDS  # the caller needs its files, so waiting longer is worth it
        except asyncio.CancelledError:
            await asyncio.shield(run.terminate())
            raise
        finally:
            is_empty = await asyncio.shield(run.kill_all(wait_seconds))
    if not is_empty:
        raise ToolError(
            "sandbox_stuck", "Processes of the program could not be ended, so none of its files was read."
        )
    return ProgramResult(
        stdout=run.stdout.get_output(),
        stderr=run.stderr.get_output(),
        exit_code=process.returncode if process.returncode is not None else -signal.SIGKILL,
        timed_out=timed_out,
        excess=excess,
    )


async def _start_process(
    program: Sequence[str], channels: _Pipes, folder: Path, workdir: str
) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *_build_command(channels, folder, workdir),
        *program,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={},
        start_new_session=True,
        limit=_CHUNK_BYTES,
        pass_fds=channels.inherited,
    )
    channels.close_inherited()
    return process


class _SandboxRun:
    """One program, from the start of bubblewrap until none of its processes is left."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout, self.stderr = _OutputCapture(), _OutputCapture()
        self._process = process
        self._first: _InitProcess | None = None
        self._reading = asyncio.create_task(
            _read_streams(self.stdout.read_pipe(process.stdout), self.stderr.read_pipe(process.stderr))
        )
        self._waiting = asyncio.create_task(process.wait())

    async def admit_program(self, channels: _Pipes) -> None:
        """Take hold of the first process, then let the program begin. One that cannot be held never begins."""
        try:
            async with asyncio.timeout(START_TIMEOUT_SECONDS):
                report = await channels.read_report()
        except TimeoutError as problem:
            raise ToolError("sandbox_failed", "The sandbox did not start. Try again.") from problem
        self._first = _InitProcess.from_report(report, self._process.pid)
        if self._first is None:
            channels.refuse()
        else:
            channels.admit()

    async def wait_until_over(self, folder: Path, seconds: float) -> tuple[bool, str]:
        """Wait until the program ends or must be stopped. Return whether it timed out, and which limit it broke."""
        watching = asyncio.create_task(_watch_limits(self._process.pid, folder))
        try:
            done, _ = await asyncio.wait(
                {self._waiting, watching}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            return not done, watching.result() if watching in done else ""
        finally:
            watching.cancel()

    async def terminate(self) -> None:
        """Let the program exit cleanly. bubblewrap itself is not signalled, because it would end at once."""
        await asyncio.to_thread(resources.signal_descendants, self._process.pid, signal.SIGTERM)
        await asyncio.wait({self._waiting}, timeout=TERM_GRACE_SECONDS)

    async def kill_all(self, seconds: float) -> bool:
        """Kill what still runs, and return whether all of it was gone in time."""
        try:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            if self._first is not None:
                self._first.kill()
            await self._process.wait()
            is_empty = self._first is None or await self._first.has_ended(seconds)
            await asyncio.wait({self._reading}, timeout=KILL_WAIT_SECONDS)
            return is_empty
        finally:
            self._reading.cancel()
            if self._first is not None:
                self._first.close()


class _InitProcess:
    """The first process of a sandbox, held by a pidfd, which can never refer to another process."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._descriptor = descriptor

    @classmethod
    def from_report(cls, report: bytes, parent: int) -> _InitProcess | None:
        """Take hold of the process that bubblewrap named, or return None if it has already ended.

        The pid may belong to another process by now. It is the right one if it is the first of its namespace,
        a child of bubblewrap, and still alive after this was read.
        """
        try:
            pid = int(json.loads(report)["child-pid"])
            descriptor = os.pidfd_open(pid)
        except (ValueError, KeyError, ProcessLookupError):
            return None
        first = cls(pid, descriptor)
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            status = ""
        is_first = re.search(r"^NSpid:\t\d+(\t\d+)*\t1$", status, re.MULTILINE)
        is_child = re.search(rf"^PPid:\t{parent}$", status, re.MULTILINE)
        if is_first and is_child and not first._is_over():
            return first
        first.close()
        return None

    def _is_over(self) -> bool:
        return bool(select.select([self._descriptor], [], [], 0)[0])

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    async def has_ended(self, seconds: float) -> bool:
        """Wait for the end, which the kernel reports only after every other process of the namespace is gone."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._descriptor, ended.set)
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._descriptor)
        with contextlib.suppress(ChildProcessError):  # in a container we may be the one that reaps it
            os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - it does not wait
        return True

    def close(self) -> None:
        os.close(self._descriptor)


class _Pipes:
    """Pipes between us and bubblewrap: its filter, its report of the first process, and the program's gate."""

    def __enter__(self) -> _Pipes:
        with contextlib.ExitStack() as undo:
            self.filter = undo.enter_context(seccomp.open_filter())
            self._report, self._reporter = _open_pipe(undo)
            self._gate, self._opener = _open_pipe(undo)
            self._opened = undo.pop_all()
        self.report, self.reporter, self.gate = (
            end.fileno() for end in (self._report, self._reporter, self._gate)
        )
        self.inherited = (self.filter, self.reporter, self.gate)
        return self

    def __exit__(self, *problem: object) -> None:
        self._opened.close()

    def close_inherited(self) -> None:
        """Close our copies of what bubblewrap has now: a pipe ends when nobody can write to it."""
        self._reporter.close()
        self._gate.close()

    async def read_report(self) -> bytes:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._report
        )
        try:
            return await reader.read()
        finally:
            transport.close()

    def admit(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._opener.write(_ADMIT_BYTE)

    def refuse(self) -> None:
        self._opener.close()


def _open_pipe(undo: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    reading, writing = os.pipe()
    return undo.enter_context(io.FileIO(reading, "r")), undo.enter_context(io.FileIO(writing, "w"))


async def _watch_limits(pid: int, folder: Path) -> str:
    """Return when the program exceeds a limit: limits of the kernel apply to each process, not to all together."""
    took = 0.0
    while True:
        # A program that makes measuring slow is measured less often.
        await asyncio.sleep(max(WATCH_INTERVAL_SECONDS, took))
        began = time.monotonic()
        if await asyncio.to_thread(resources.count_open_files, pid) > MAX_TOTAL_OPEN_FILES:
            return f"it held more than {MAX_TOTAL_OPEN_FILES:,} files open"
        if await asyncio.to_thread(resources.measure_memory, pid) > MAX_MEMORY_BYTES:
            return f"it took more than {MAX_MEMORY_BYTES // 2**30} GiB of memory"
        use = await asyncio.to_thread(resources.measure_disk_usage, pid, folder, most=MAX_FOLDER_BYTES)
        if use.size_bytes > MAX_FOLDER_BYTES:
            return f"it wrote more than {MAX_FOLDER_BYTES // 2**30} GiB"
        if use.hidden:
            return "it made folders that are nested too deeply or cannot be read"
        if resources.is_disk_full(folder, least_bytes=MIN_FREE_BYTES, least_names=MIN_FREE_NAMES):
            return "the disk of the server is nearly full"
        took = time.monotonic() - began


async def _read_streams(*streams: Awaitable[None]) -> None:
    await asyncio.gather(*streams)


class _OutputCapture:
    def __init__(self) -> None:
        self._kept = bytearray()
        self._left_out = 0

    async def read_pipe(self, pipe: asyncio.StreamReader) -> None:
        while chunk := await pipe.read(_CHUNK_BYTES):
            room = MAX_CAPTURED_BYTES - len(self._kept)
            self._kept += chunk[:room]
            self._left_out += max(len(chunk) - room, 0)

    def get_output(self) -> CapturedOutput:
        return CapturedOutput(text=self._kept.decode(errors="replace"), left_out=self._left_out)


# --- bubblewrap arguments ----------------------------------------------------------------------------


def _build_command(channels: _Pipes, folder: Path, workdir: str) -> list[str]:
    inside = os.path.normpath(os.path.join(WORKSPACE_MOUNT, workdir)) if workdir else WORKSPACE_MOUNT
    return [
        *_isolation_arguments(channels),
        "--bind",
        str(folder),
        WORKSPACE_MOUNT,
        "--chdir",
        inside,
        *_limit_arguments(channels),
    ]


def _limit_arguments(channels: _Pipes) -> list[str]:
    # The root of the sandbox is a tmpfs too, and would be writable.
    return ["--remount-ro", "/", "--", "/bin/bash", "-c", _LIMITS_SCRIPT, "limits", str(channels.gate)]


def _isolation_arguments(channels: _Pipes) -> list[str]:
    """Isolate every namespace, mount the system read-only, and pass nothing of our environment."""
    return [
        *("nice", "-n", str(NICENESS)),
        # Never as root: the kernel does not count root's processes, and an escaped root could read everything.
        *privileges.build_setpriv_command(privileges.get_unprivileged_account(settings.SANDBOX_UID)),
        shutil.which(settings.SANDBOX_PROGRAM) or settings.SANDBOX_PROGRAM,
        # The creator of a nested namespace is its administrator and could mount unlimited memory.
        *("--unshare-user", "--disable-userns", "--seccomp", str(channels.filter)),
        *("--info-fd", str(channels.reporter)),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"),
        *("--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--clearenv"),
        *(word for name, value in SANDBOX_ENVIRONMENT.items() for word in ("--setenv", name, value)),
        *_system_mount_arguments(),
        *("--proc", "/proc", *_hidden_proc_arguments()),
        *("--dev", "/dev", "--size", str(MAX_TMP_BYTES), "--tmpfs", "/tmp"),  # noqa: S108
        *("--size", str(MAX_TMP_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108
    ]


def _hidden_proc_arguments() -> list[str]:
    """Hide the first process: the program has the same account and could rewrite its memory."""
    words = ["--tmpfs", "/proc/1", "--remount-ro", "/proc/1"]
    for name in _HIDDEN_PROC_FILES:
        if os.path.exists(f"/proc/{name}"):
            words += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return words


def _system_mount_arguments() -> list[str]:
    """Mount programs and libraries only, and cover our own code and files if they lie below /usr."""
    words = ["--ro-bind", "/usr", "/usr"]
    for place in _SYSTEM_FOLDERS:
        if os.path.islink(place):
            words += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            words += ["--ro-bind", place, place]
    for place in _CONFIGURATION_FILES:
        words += ["--ro-bind-try", place, place]
    for place in (str(settings.BASE_DIR), str(settings.MEDIA_ROOT), *_COVERED_FOLDERS):
        if place.startswith("/usr/") and os.path.isdir(place):
            words += ["--tmpfs", place, "--remount-ro", place]
    return words
