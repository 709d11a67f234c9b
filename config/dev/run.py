"""Run a whole installation on one machine: servers, web, workers and scheduler, with merged logs (make run)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TextIO

from django.core.exceptions import ImproperlyConfigured

from config import env
from config.core import demo_login
from config.dev.servers import (
    EmbeddedPostgres,
    EmbeddedServer,
    EmbeddedValkey,
    ServerProblem,
    signal_on_parent_death,
)

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


ROOT = Path(__file__).resolve().parents[2]
DATA_DIRECTORY = Path(
    os.environ.get("PILOTHOUSE_VAR") or ROOT / "var"
)  # everything that is kept between restarts
LOCK_FILE = DATA_DIRECTORY / "run.lock"
RUN_ENV_FILE = DATA_DIRECTORY / "run.env"  # where `manage.py` finds the servers of a running installation
TURN_GRACE_SECONDS = "5"  # seconds for running answers after Ctrl-C; the rest is handed over
DEMO_LOGIN_TEXT = f"{demo_login.DEMO_USERNAME} / {demo_login.DEMO_PASSWORD}"
MODEL_VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
CELERY_COMMAND = (sys.executable, "-m", "celery", "--quiet", "-A", "config")
QUIET_WORKER_OPTIONS = (
    "--without-gossip",
    "--without-mingle",
    "--without-heartbeat",
)  # Redis keeps what these would report


def _build_worker(name: str, queue: str, *options: str, nice: int = 0) -> Program:
    before = ("nice", "-n", str(nice)) if nice else ()
    command = (
        *CELERY_COMMAND,
        "worker",
        "-n",
        f"{name}@%h",
        "-Q",
        queue,
        "-l",
        "INFO",
        *options,
        *QUIET_WORKER_OPTIONS,
    )
    return Program(name, (*before, *command))


WORKERS = (
    _build_worker("turns", "turns", "-P", "threads", "-c", "8", "--prefetch-multiplier", "1"),
    _build_worker("maintenance", "maintenance", "-P", "solo"),
    _build_worker("background", "default,chats", "-P", "prefork", "-c", "2"),
    Program("schedule", (*CELERY_COMMAND, "beat", "-l", "INFO", "--pidfile=")),
)
BOOTSTRAP_PROGRAM = Program("prepare", (sys.executable, "-m", "config.bootstrap", "--when-told"))
CHAT_WORKER = _build_worker(
    "chats", "chats", "-P", "threads", "-c", "4", nice=10
)  # a burst there must not slow the pages
BOT_TOKEN_VARIABLES = ("TELEGRAM_BOT_TOKEN", "DISCORD_BOT_TOKEN", "SLACK_BOT_TOKEN")


def list_workers(environment: Mapping[str, str]) -> tuple[Program, ...]:
    """List the worker processes. Configured bots get a worker of their own, so that they wait for nothing else.

    Only that process talks to the platforms, because it counts their rate limits.
    """
    if not any(environment.get(name) for name in BOT_TOKEN_VARIABLES):
        return WORKERS
    others = tuple(replace(one, command=_remove_chat_queue(one.command)) for one in WORKERS)
    return (*others, CHAT_WORKER)


def repeat_turn_worker(workers: Sequence[Program], count: int) -> tuple[Program, ...]:
    """Start the turn worker `count` times. Each uses one core and takes 130 MB."""
    [turns] = [one for one in workers if one.name == "turns"]
    more = (
        Program(f"turns{number}", tuple(word.replace("turns@", f"turns{number}@") for word in turns.command))
        for number in range(2, count + 1)
    )
    return (*workers, *more)


def embed_scheduler(workers: Sequence[Program]) -> tuple[Program, ...]:
    """Move the scheduler into the maintenance worker: a process of its own takes 110 MB and has little to do."""
    return tuple(
        replace(one, command=(*one.command, "--with-scheduler")) if one.name == "maintenance" else one
        for one in workers
        if one.name != "schedule"
    )


def _remove_chat_queue(command: Sequence[str]) -> tuple[str, ...]:
    return tuple(word.removesuffix(",chats") for word in command)


def _build_web(host: str, port: int) -> Program:
    return Program(
        "web", (sys.executable, "-m", "config.http.web_server", "--host", host, "--port", str(port))
    )


class RunProblem(Exception):
    """Raised when the installation cannot start; the message says what to do."""


def main() -> int:
    try:
        with _hold_run_lock(), contextlib.ExitStack() as stack:
            host, port, turn_processes = (
                os.environ.get("HOST", "127.0.0.1"),
                _read_port(),
                _read_turn_processes(),
            )
            _refuse_public_demo(host)
            _refuse_taken_port(host, port)
            environment = _build_environment(port)
            servers = _create_servers(environment)
            for server in reversed(servers):
                stack.callback(server.stop)
            environment |= {_get_url_variable(server): server.reserve_address() for server in servers}
            stack.enter_context(_write_run_environment(environment))
            return asyncio.run(
                _supervise(environment, servers, host=host, port=port, turn_processes=turn_processes)
            )
    except (RunProblem, ServerProblem) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as problem:
        sys.stderr.write(f"Cannot start: {problem.strerror} {problem.filename or ''}\n")
        return 1


@contextlib.contextmanager
def _hold_run_lock() -> Iterator[None]:
    """Hold a lock that the kernel releases with the process, however it ends."""
    for directory in (
        DATA_DIRECTORY,
        DATA_DIRECTORY / "static",
        DATA_DIRECTORY / "workspace",
        DATA_DIRECTORY / "metrics",
    ):
        directory.mkdir(parents=True, exist_ok=True)
    with LOCK_FILE.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise RunProblem(f"Pilothouse already runs here ({lock.read().strip() or 'starting'}).") from None
        for left in (DATA_DIRECTORY / "metrics").glob("*.db"):  # metrics of earlier processes
            left.unlink()
        _write_lock(lock, f"process {os.getpid()}, http://127.0.0.1:{os.environ.get('PORT', '8000')}")
        yield
        _write_lock(lock, "")


def _write_lock(lock: TextIO, text: str) -> None:
    lock.truncate(0)
    lock.write(text)
    lock.flush()


def _read_port() -> int:
    text = os.environ.get("PORT") or "8000"
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise RunProblem(f"PORT must be a number from 1 to 65535, not {text!r}.")
    return int(text)


def _read_turn_processes() -> int:
    text = os.environ.get("TURN_PROCESSES") or "1"
    if not text.isdecimal() or not 0 < int(text) <= 64:
        raise RunProblem(f"TURN_PROCESSES must be a number from 1 to 64, not {text!r}.")
    return int(text)


def _refuse_public_demo(host: str) -> None:
    """Refuse to serve the demo login, a superuser with a public password, to other machines."""
    if _has_demo_login() and not _is_loopback(host):
        raise RunProblem(
            f"HOST={host} would let everybody on the network log in as {DEMO_LOGIN_TEXT}: "
            f"switch the demo login off with DEMO_LOGIN=false, or leave HOST out."
        )


def _has_demo_login() -> bool:
    if os.environ.get("PILOTHOUSE_ENVIRONMENT", "development") != "development":
        return False
    try:
        return env.read_variable("DEMO_LOGIN", env.flag, True)
    except ImproperlyConfigured as problem:
        raise RunProblem(f"{problem}.") from None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_taken_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            raise RunProblem(
                f"Port {port} cannot be used ({problem.strerror}): stop the other program, "
                f"or choose another port: make run PORT={port + 1}"
            ) from None


def _build_environment(port: int) -> dict[str, str]:
    """Build the environment of child processes; variables that the caller has set win."""
    defaults = {
        "PILOTHOUSE_ENVIRONMENT": "development",
        "SITE_URL": f"http://127.0.0.1:{port}",
        "TURN_GRACE_SECONDS": TURN_GRACE_SECONDS,
        "STATIC_ROOT": str(DATA_DIRECTORY / "static"),
        "WORKSPACE_ROOT": str(DATA_DIRECTORY / "workspace"),
        "PROMETHEUS_MULTIPROC_DIR": str(DATA_DIRECTORY / "metrics"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore:You're running the worker with superuser privileges",  # allowed in a container
    }
    return defaults | os.environ


def _create_servers(environment: dict[str, str]) -> list[EmbeddedServer]:
    """Create the servers that no URL names."""
    servers: list[EmbeddedServer] = []
    if not environment.get("REDIS_URL"):
        servers.append(EmbeddedValkey(DATA_DIRECTORY / "valkey", durable=True))
    if not environment.get("DATABASE_URL"):
        servers.append(EmbeddedPostgres(DATA_DIRECTORY / "postgres", durable=True))
    return servers


def _get_url_variable(server: EmbeddedServer) -> str:
    return "DATABASE_URL" if isinstance(server, EmbeddedPostgres) else "REDIS_URL"


@contextlib.contextmanager
def _write_run_environment(environment: dict[str, str]) -> Iterator[None]:
    """Write the servers' addresses, so that `manage.py` in another terminal finds them."""
    names = ("PILOTHOUSE_ENVIRONMENT", "SITE_URL", "DATABASE_URL", "REDIS_URL")
    RUN_ENV_FILE.touch(mode=0o600)
    RUN_ENV_FILE.write_text("".join(f"{name}={environment[name]}\n" for name in names))
    try:
        yield
    finally:
        RUN_ENV_FILE.unlink(missing_ok=True)


async def _supervise(
    environment: dict[str, str], servers: list[EmbeddedServer], *, host: str, port: int, turn_processes: int
) -> int:
    """Start web and bootstrap beside the servers; the workers follow once the database is migrated."""
    supervisor = Supervisor(environment, grace_seconds=float(environment["TURN_GRACE_SECONDS"]) + 5)
    loop = asyncio.get_running_loop()
    for kindness in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(kindness, supervisor.stop)
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.wait_until_stopped())
        serving = group.create_task(_start_servers(supervisor, servers))
        group.create_task(supervisor.keep_running(_build_web(host, port)))
        failed = await supervisor.run_once(BOOTSTRAP_PROGRAM, when=serving) or not serving.result()
        if failed and not supervisor.stopping.is_set():
            supervisor.stop()
        for server in servers:
            group.create_task(supervisor.keep_server_running(server))
        workers = repeat_turn_worker(list_workers(environment), turn_processes)
        for program in embed_scheduler(workers):
            group.create_task(supervisor.keep_running(program))
        await _announce_when_ready(supervisor, port)
        for server in servers:
            await asyncio.to_thread(server.sync_to_disk)
    return 1 if failed > 0 else 0


async def _start_servers(supervisor: Supervisor, servers: list[EmbeddedServer]) -> bool:
    """Start the servers from this thread: they end with the thread that started them."""
    try:
        await asyncio.gather(*(asyncio.to_thread(server.prepare) for server in servers))
        for server in servers:
            server.launch()
        await asyncio.gather(*(asyncio.to_thread(server.wait_ready) for server in servers))
    except ServerProblem as problem:
        sys.stderr.write(f"{problem}\n")
        supervisor.stop()
        return False
    return True


async def _announce_when_ready(supervisor: Supervisor, port: int) -> None:
    """Print the address once the page is really served."""
    while not supervisor.stopping.is_set():
        if await _is_ready(port):
            break
        await supervisor.sleep_unless_stopping(0.1)
    else:
        return
    print_log_line("pilothouse", f"ready: {supervisor.environment['SITE_URL']}")
    if _has_demo_login():
        print_log_line("pilothouse", f"log in as {DEMO_LOGIN_TEXT} (development only)")
    if not any(supervisor.environment.get(name) for name in MODEL_VARIABLES):
        print_log_line(
            "pilothouse",
            "no model is configured: an offline demo answers. Set OPENAI_API_KEY or ANTHROPIC_API_KEY",
        )
    print_log_line("pilothouse", "Ctrl-C stops everything")


async def _is_ready(port: int) -> bool:
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            status = await reader.readline()
            writer.close()
    except (OSError, TimeoutError):
        return False
    return b" 200 " in status


if __name__ == "__main__":
    sys.exit(main())
