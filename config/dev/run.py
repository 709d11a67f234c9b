"""Run a whole installation on one machine: servers, web, workers and scheduler, with merged logs (make run)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TextIO

from django.core.exceptions import ImproperlyConfigured

from config import env
from config.core import demo_login
from config.dev.process_supervisor import Program, Supervisor, print_log_line
from config.dev.servers import EmbeddedPostgres, EmbeddedServer, EmbeddedValkey, ServerProblem

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
            host, port = os.environ.get("HOST", "127.0.0.1"), _read_port()
            _refuse_public_demo(host)
            _refuse_taken_port(host, port)
            environment = _build_environment(port)
            servers = _create_servers(environment)
            for server in reversed(servers):
                stack.callback(server.stop)
            environment |= {_get_url_variable(server): server.reserve_address() for server in servers}
            stack.enter_context(_write_run_environment(environment))
            return asyncio.run(_supervise(environment, servers, host=host, port=port))
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
        return env.read_flag("DEMO_LOGIN", True)
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
    environment: dict[str, str], servers: list[EmbeddedServer], *, host: str, port: int
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
        for program in list_workers(environment):
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
