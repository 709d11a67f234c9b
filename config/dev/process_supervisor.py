"""Keeps child processes alive: one readable log, a restart after a crash, an orderly end."""

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
STABLE_AFTER_SECONDS = 60.0  # who ran this long has earned a quick restart again
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
    """Runs programs in one environment until it is told to stop."""

    def __init__(self, environment: dict[str, str], *, grace_seconds: float) -> None:
        self.environment = environment
        self.grace_seconds = grace_seconds
        self.stopping = asyncio.Event()
        self._running: dict[str, asyncio.subprocess.Process] = {}

    def stop(self) -> None:
        """First kindly; at the second call at once."""
        if self.stopping.is_set():
            print_log_line("pilothouse", "stopping at once")
            self._signal_all(signal.SIGKILL)
            return
        print_log_line("pilothouse", "stopping; once more stops at once")
        self.stopping.set()
        self._signal_all(signal.SIGTERM)

    async def run_once(self, program: Program, *, when: Awaitable[object] | None = None) -> int:
        """Run to the end and tell the exit code; `when` is over, its input ends, which it may wait for."""
        process = await self._spawn(program)
        following = asyncio.create_task(self._wait_for_exit(program, process))
        if when is not None:
            await when
        assert process.stdin is not None
        process.stdin.close()
        return await following

    async def keep_running(self, program: Program) -> None:
        """Run, and run again after every death, until the stop."""
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
        """The same for a server, on its old port, so that the children find it again."""
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
        """After the stop: wait for the children, and kill those that overstay the grace."""
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
            start_new_session=True,  # Ctrl-C reaches us alone; we tell the others in our order
            preexec_fn=signal_on_parent_death(signal.SIGTERM),  # one prctl call, safe after fork
        )
        self._running[program.name] = process
        if self.stopping.is_set():  # asked to stop while it was being made
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
        """SIGTERM goes to the head of each family, which sees to its own; SIGKILL to all of it."""
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
        except ValueError:  # longer than LONGEST_LINE: dropped by the reader
            line = b"(a very long line was left out)"
        if line.strip():
            print_log_line(name, line.decode(errors="replace").rstrip())


def print_log_line(name: str, text: str) -> None:
    """One line of the merged log; a reader that went away is no reason to stop."""
    label = name.ljust(NAME_WIDTH)
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        label = f"\033[{PROGRAM_COLOURS.get(name, 1)}m{label}\033[0m"
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{label} │ {text}\n")
        sys.stdout.flush()


def _describe_exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
