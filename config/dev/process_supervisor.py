"""Supervise child processes: merge their logs, restart them after a crash, stop them in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable
from dataclasses import dataclass

from config.dev.servers import EmbeddedServer, ServerProblem, signal_on_parent_death

MAX_LINE_BYTES = 1024 * 1024
FIRST_RESTART_DELAY_SECONDS = 1.0
MAX_RESTART_DELAY_SECONDS = 30.0
STABLE_AFTER_SECONDS = 60.0  # after this long the next restart is quick again
PROGRAM_COLOURS = {
    "web": 36,
    "turns": 32,
    "background": 34,
    "chats": 94,
    "maintenance": 35,
    "schedule": 33,
    "prepare": 90,
}
NAME_WIDTH = max(map(len, PROGRAM_COLOURS))


@dataclass(frozen=True)
class Program:
    name: str
    command: tuple[str, ...]


class Supervisor:
    """Run programs in one environment until `stop` is called."""

    def __init__(self, environment: dict[str, str], *, grace_seconds: float) -> None:
        self.environment = environment
        self.grace_seconds = grace_seconds
        self.stopping = asyncio.Event()
        self._running: dict[str, asyncio.subprocess.Process] = {}

    def stop(self) -> None:
        """Ask the children to stop; kill them at the second call."""
        if self.stopping.is_set():
            print_log_line("pilothouse", "stopping at once")
            self._signal_all(signal.SIGKILL)
            return
        print_log_line("pilothouse", "stopping; once more stops at once")
        self.stopping.set()
        self._signal_all(signal.SIGTERM)

    async def run_once(self, program: Program, *, when: Awaitable[object] | None = None) -> int:
        """Run a program to its end and return the exit code. Its input is closed once `when` is done; it may wait for
        that.
        """
        process = await self._spawn(program)
        following = asyncio.create_task(self._wait_for_exit(program, process))
        if when is not None:
            await when
        assert process.stdin is not None
        process.stdin.close()
        return await following

    async def keep_running(self, program: Program) -> None:
        """Run a program, and restart it whenever it exits, until the stop."""
        pause = FIRST_RESTART_DELAY_SECONDS
        clock = asyncio.get_running_loop().time
        while not self.stopping.is_set():
            began = clock()
            code = await self.run_once(program)
            if self.stopping.is_set():
                return
            pause = FIRST_RESTART_DELAY_SECONDS if clock() - began > STABLE_AFTER_SECONDS else pause
            print_log_line(program.name, f"died ({_describe_exit(code)}); starting it again in {pause:.0f} s")
            await self.sleep_unless_stopping(pause)
            pause = min(pause * 2, MAX_RESTART_DELAY_SECONDS)

    async def keep_server_running(self, server: EmbeddedServer) -> None:
        """Keep a server running, on its old port, so that the children find it again."""
        while not self.stopping.is_set():
            await self.sleep_unless_stopping(0.5)
            if self.stopping.is_set() or server.is_running:
                continue
            print_log_line("pilothouse", f"{server.name} died; starting it again")
            try:
                server.launch()
                await asyncio.to_thread(server.wait_ready)
            except ServerProblem as problem:
                print_log_line("pilothouse", str(problem))
                await self.sleep_unless_stopping(FIRST_RESTART_DELAY_SECONDS)

    async def wait_until_stopped(self) -> None:
        """Wait for the children after the stop, and kill those that exceed the grace period."""
        await self.stopping.wait()
        leaving = [asyncio.create_task(process.wait()) for process in self._running.values()]
        if leaving:
            await asyncio.wait(leaving, timeout=self.grace_seconds)
        for name in self._running:
            print_log_line(name, f"did not stop within {self.grace_seconds:.0f} s; killed")
        self._signal_all(signal.SIGKILL)

    async def sleep_unless_stopping(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)

    async def _spawn(self, program: Program) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *program.command,
            env=self.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=MAX_LINE_BYTES,
            start_new_session=True,  # Ctrl-C reaches only us; we stop the children in order
            preexec_fn=signal_on_parent_death(signal.SIGTERM),  # one prctl call, safe after fork
        )
        self._running[program.name] = process
        if self.stopping.is_set():  # stopped while it was starting
            process.terminate()
        return process

    async def _wait_for_exit(self, program: Program, process: asyncio.subprocess.Process) -> int:
        reading = asyncio.create_task(_relay_output(program.name, process))
        code = await process.wait()
        self._running.pop(program.name, None)
        await asyncio.wait([reading], timeout=1)  # a grandchild may keep the pipe open
        reading.cancel()
        return code

    def _signal_all(self, kindness: signal.Signals) -> None:
        """Send SIGTERM to the first process of each group, which stops its own children; send SIGKILL to the whole
        group.
        """
        for process in list(self._running.values()):
            with contextlib.suppress(ProcessLookupError):
                if kindness == signal.SIGKILL:
                    os.killpg(process.pid, kindness)
                else:
                    process.send_signal(kindness)


async def _relay_output(name: str, process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    while not process.stdout.at_eof():
        try:
            line = await process.stdout.readline()
        except ValueError:  # a line longer than LONGEST_LINE, which the reader drops
            line = b"(a very long line was left out)"
        if line.strip():
            print_log_line(name, line.decode(errors="replace").rstrip())


def print_log_line(name: str, text: str) -> None:
    """Print one line of the merged log, even if nobody reads it any more."""
    label = name.ljust(NAME_WIDTH)
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        label = f"\033[{PROGRAM_COLOURS.get(name, 1)}m{label}\033[0m"
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{label} │ {text}\n")
        sys.stdout.flush()


def _describe_exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
