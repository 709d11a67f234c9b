"""A whole installation for one bench run: private servers, the fake provider, web, workers and scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from bench.clients import SocketClient, Target
from config.run import WORKERS
from config.servers import Postgres, Valkey, dies_with_parent, free_port, start

ROOT = Path(__file__).resolve().parent.parent
MODEL = "fake:tokens=20,stamp=1"
START_SECONDS = 60.0
SITE = ("web", "turns", "maintenance", "schedule")


class BenchProblem(Exception):
    """The run cannot go on; the message says why."""


@dataclass
class Seeded:
    """Who may enter, and where."""

    cookies: list[str]
    sessions: list[str]
    histories: dict[int, str]


class Site:
    """One web process, one worker of turns, maintenance and beat, exactly as the run command starts them."""

    def __init__(self, directory: Path, *, users: int, sessions: int) -> None:
        self.directory = directory
        self.postgres = Postgres(directory / "postgres", durable=True)
        self.valkey = Valkey(directory / "valkey", durable=True)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        self.provider_port = 0
        self._users, self._sessions = users, sessions
        self._extra_workers = 0
        self.seeded: Seeded
        self.environment: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def provider_url(self) -> str:
        return f"http://127.0.0.1:{self.provider_port}/v1"

    # --- starting --------------------------------------------------------------------------------

    def start(self) -> None:
        start(self.valkey, self.postgres)
        self.provider_port = self._start_provider()
        self.environment = self._environment()
        self._run("config.prepare")
        commands = {program.name: program.command for program in WORKERS}
        web = (sys.executable, "-m", "config.web", "--port", str(self.port))
        for name in SITE:
            self.spawn(name, web if name == "web" else commands[name])
        self.seeded = self._seed()
        self._wait_until_ready()

    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "PILOTHOUSE_ENVIRONMENT": "development",
            "SECRET_KEY": secrets.token_hex(32),
            "SITE_URL": self.url,
            "DATABASE_URL": self.postgres.url,
            "REDIS_URL": self.valkey.url,
            "OPENAI_BASE_URL": self.provider_url,
            "OPENAI_API_KEY": "x",
            "OPENAI_MODEL": MODEL,
            "ANTHROPIC_API_KEY": "",
            "STATIC_ROOT": str(self.directory / "static"),
            "WORKSPACE_ROOT": str(self.directory / "workspace"),
            "TURN_GRACE_SECONDS": "1",
            "PYTHONWARNINGS": "ignore",
        }

    def _start_provider(self) -> int:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.fake_provider", "--port", "0"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            preexec_fn=dies_with_parent(signal.SIGKILL),
        )
        self.processes["provider"] = process
        assert process.stdout is not None
        return int(json.loads(process.stdout.readline())["port"])

    def _run(self, module: str, *arguments: str) -> bytes:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise BenchProblem(f"{module} failed:\n{done.stderr.decode()[-2000:]}")
        return done.stdout

    def _seed(self) -> Seeded:
        output = self._run("bench.seed", "--users", str(self._users), "--sessions", str(self._sessions))
        found = json.loads(output.splitlines()[-1])
        histories = {int(size): session for size, session in found["histories"].items()}
        return Seeded(found["cookies"], found["sessions"], histories)

    def spawn(self, name: str, command: tuple[str, ...]) -> None:
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=dies_with_parent(signal.SIGKILL),
            )

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def add_worker(self) -> str:
        """Another worker of turns, under a name of its own."""
        self._extra_workers += 1
        name = f"turns{self._extra_workers}"
        command = next(program.command for program in WORKERS if program.name == "turns")
        self.spawn(name, tuple(part.replace("turns@%h", f"{name}@%h") for part in command))
        return name

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not (answers(f"{self.url}/readyz") and self.living_workers()):
            self.check()
            if time.monotonic() > deadline:
                raise BenchProblem(f"the site did not become ready; see {self.directory}")
            time.sleep(0.1)

    def check(self) -> None:
        """Figures of a site that has lost a process are worth nothing."""
        for name, process in self.processes.items():
            if (code := process.poll()) is not None:
                words = self.log(name).read_text()[-2000:] if self.log(name).exists() else ""
                raise BenchProblem(f"{name} died with code {code}\n{words}")
        for server in (self.postgres, self.valkey):
            if not server.running:
                raise BenchProblem(f"{server.name} died")

    # --- asking ----------------------------------------------------------------------------------

    def query(self, sql: str, *parameters: object) -> list[tuple]:
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            cursor = connection.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    def living_workers(self) -> int:
        fresh = "SELECT count(*) FROM copilot_workerbeat WHERE beat_at > now() - interval '5 seconds'"
        return int(self.query(fresh)[0][0])

    def target(self, number: int) -> Target:
        """The site as user `number` sees it."""
        cookies = self.seeded.cookies
        return Target(self.url, {"Cookie": cookies[number % len(cookies)]})

    def client(self, number: int) -> SocketClient:
        """A socket of the owner of session `number`, not opened yet."""
        return SocketClient(self.target(number), self.seeded.sessions[number])

    async def clients(self, numbers: range) -> list[SocketClient]:
        """Opened and subscribed, some at a time."""
        opened: list[SocketClient] = []
        for first in range(0, len(numbers), 50):
            some = numbers[first : first + 50]
            opened += await asyncio.gather(*(self.client(number).open() for number in some))
        return opened

    def process(self, name: str) -> psutil.Process:
        return psutil.Process(self.processes[name].pid)

    # --- stopping --------------------------------------------------------------------------------

    def stop(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in self.processes.values():
            process.wait()
        self.postgres.stop()
        self.valkey.stop()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


@contextlib.contextmanager
def running_site(*, users: int, sessions: int, keep: bool = False) -> Iterator[Site]:
    """Everything it started is gone at the end, with its data."""
    raise_file_limit()
    directory = Path(tempfile.mkdtemp(prefix="pilothouse-bench-"))
    directory.chmod(0o755)  # the demoted servers reach their own directories through it
    site = Site(directory, users=users, sessions=sessions)
    try:
        site.start()
        yield site
    finally:
        site.stop()
        if keep:
            print(f"logs and data are kept in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def raise_file_limit() -> None:
    """Thousands of sockets need as many descriptors; children inherit the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
