"""Run a whole installation for one bench run: private servers, the fake provider, web, workers and scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.sql import SQL, Identifier, Literal

from bench.clients import SocketClient, Target
from bench.installation import Installation, InstallationProblem, answers, directory_of, keep
from config.dev.run import embed_scheduler, list_workers
from config.dev.servers import find_free_port

MODEL = "fake:tokens=20,stamp=1"
START_SECONDS = 60.0
SITE = ("web", "turns", "maintenance", "background")
WORKERS = embed_scheduler(list_workers({}))


class BenchProblem(InstallationProblem):
    """Raised when the run cannot continue; the message says why."""


@dataclass
class Seeded:
    """Credentials and paths for the clients."""

    cookies: list[str]
    keys: list[str]  # of the first users
    sessions: list[str]
    new_sessions: list[
        str
    ]  # without a title or a message; session n belongs to user n modulo the number of users
    histories: dict[int, str]
    share: list[str]  # paths: a shared page, and the pictures on it


class Site(Installation):
    """One web process, one worker of turns, maintenance with beat, exactly as `make run` starts them."""

    def __init__(self, directory: Path, *, users: int, sessions: int, new_sessions: int = 0) -> None:
        super().__init__(directory)
        self.port = find_free_port()
        self._users, self._sessions, self._new_sessions = users, sessions, new_sessions
        self._extra_workers = 0
        self.seeded: Seeded

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # --- starting --------------------------------------------------------------------------------

    def start(self) -> None:
        self.prepare(site_url=self.url, model=MODEL, grace_seconds=1)
        self._spawn_processes()
        self.seeded = self._seed()
        self._wait_until_ready()

    def _spawn_processes(self) -> None:
        commands = {program.name: program.command for program in WORKERS}
        web = (sys.executable, "-m", "config.http.web_server", "--port", str(self.port))
        for name in SITE:
            self.spawn(name, web if name == "web" else commands[name])

    def stop_processes(self) -> None:
        """Stop our processes as a service manager would; the servers and the provider keep running."""
        stopped = [self.processes.pop(name) for name in SITE]
        for process in stopped:
            process.terminate()
        for process in stopped:
            process.wait()

    def start_processes(self) -> None:
        """After `stop_processes`."""
        self._spawn_processes()
        self._wait_until_ready()

    def _seed(self) -> Seeded:
        sizes = {"users": self._users, "sessions": self._sessions, "new-sessions": self._new_sessions}
        output = self.run("bench.seed", *(f"--{name}={size}" for name, size in sizes.items()))
        found = json.loads(output.splitlines()[-1])
        histories = {int(size): session for size, session in found["histories"].items()}
        return Seeded(
            cookies=found["cookies"],
            keys=found["keys"],
            sessions=found["sessions"],
            new_sessions=found["new_sessions"],
            histories=histories,
            share=found["share"],
        )

    def add_worker(self) -> str:
        """Start another worker of turns under its own name."""
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
        """Fail if a process has exited, because the figures would be worthless."""
        for name, process in self.processes.items():
            if (code := process.poll()) is not None:
                words = self.log(name).read_text()[-2000:] if self.log(name).exists() else ""
                raise BenchProblem(f"{name} died with code {code}\n{words}")
        for server in (self.postgres, self.valkey):
            if not server.is_running:
                raise BenchProblem(f"{server.name} died")

    def configure(self, settings: dict[str, str]) -> None:
        """Change settings of Postgres until the end of the run."""
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            for name, value in settings.items():
                command = SQL("ALTER SYSTEM SET {} = {}").format(Identifier(*name.split(".")), Literal(value))
                connection.execute(command)
            connection.execute("SELECT pg_reload_conf()")

    # --- asking ----------------------------------------------------------------------------------

    def query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            cursor = connection.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    def living_workers(self) -> int:
        fresh = (
            "SELECT count(*) FROM copilot_workerheartbeat WHERE last_beat_at > now() - interval '5 seconds'"
        )
        return int(self.query(fresh)[0][0])

    def target(self, number: int) -> Target:
        """Return the site's address with the cookie of user `number`."""
        cookies = self.seeded.cookies
        return Target(self.url, {"Cookie": cookies[number % len(cookies)]})

    def api_target(self, number: int) -> Target:
        """Return the site's address with the API key of user `number`."""
        return Target(self.url, {"Authorization": f"Bearer {self.seeded.keys[number]}"})

    def take_new_sessions(self, number: int, rounds: int) -> list[str]:
        """Return unused sessions of user `number`."""
        users, unused = len(self.seeded.cookies), self.seeded.new_sessions
        mine = [place for place in range(number % users, len(unused), users) if unused[place]][:rounds]
        taken = [unused[place] for place in mine]
        for place in mine:
            unused[place] = ""
        return taken

    def client(self, number: int) -> SocketClient:
        """Return a socket of the owner of session `number`, not opened yet."""
        return SocketClient(self.target(number), self.seeded.sessions[number])

    async def clients(self, numbers: range) -> list[SocketClient]:
        """Open and subscribe sockets, some at a time."""
        opened: list[SocketClient] = []
        for first in range(0, len(numbers), 50):
            some = numbers[first : first + 50]
            opened += await asyncio.gather(*(self.client(number).open() for number in some))
        return opened

    def process(self, name: str) -> psutil.Process:
        return psutil.Process(self.processes[name].pid)


@contextlib.contextmanager
def running_site(*, users: int, sessions: int, new_sessions: int = 0, kept: bool = False) -> Iterator[Site]:
    """Stop everything at the end, and remove its data unless it should be kept."""
    raise_file_limit()
    with directory_of("bench") as directory:
        site = Site(directory, users=users, sessions=sessions, new_sessions=new_sessions)
        if kept:
            keep(directory)
        try:
            site.start()
            yield site
        finally:
            site.stop()


def raise_file_limit() -> None:
    """Raise the limit of open files, which children inherit: thousands of sockets need as many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
