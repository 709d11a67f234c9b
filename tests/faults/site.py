"""A whole installation of real processes for a fault run: two of web, two of turns, maintenance, beat, servers."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil

from bench.installation import Installation, answers, directory_of
from config.dev.run import CELERY_COMMAND, QUIET_WORKER_OPTIONS
from config.dev.servers import EmbeddedServer, ServerProblem, find_free_port
from tests.faults.engines import Engine, make_pgbouncer, make_rabbitmq

MODEL = "fake:tokens=60,gap_ms=25,first_ms=40"
START_SECONDS = 240.0  # on a busy machine; a quiet one takes ten
WEB, TURNS = ("web1", "web2"), ("turns1", "turns2")


class Site(Installation):
    """Knows how to start every part, and start it again after it was killed."""

    def __init__(self, directory: Path, *, redis_is_durable: bool, engines: Collection[str] = ()) -> None:
        super().__init__(directory, redis_is_durable=redis_is_durable)
        self.ports = {name: find_free_port() for name in WEB}
        self.engines: dict[str, Engine] = {}
        self._wanted = engines

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports.values()]

    # --- starting --------------------------------------------------------------------------------

    def start(self) -> None:
        self.prepare(site_url=self.urls[0], model=MODEL, grace_seconds=2)
        for name in (*WEB, *TURNS, "maintenance", "schedule"):
            self.spawn(name, self._command(name))
        self.wait_until_ready()

    def start_engines(self) -> dict[str, str]:
        if "pgbouncer" in self._wanted:
            self.engines["pgbouncer"] = make_pgbouncer(self.directory, self.postgres.url)
        if "rabbitmq" in self._wanted:
            self.engines["rabbitmq"] = make_rabbitmq(self.directory)
        variables: dict[str, str] = {}
        for name, engine in self.engines.items():
            self.spawn(name, engine.command)
            engine.wait_ready()
            variables |= engine.variables
        return variables

    def _command(self, name: str) -> tuple[str, ...]:
        if name in self.engines:
            return self.engines[name].command
        if name in WEB:
            return (sys.executable, "-m", "config.http.web_server", "--port", str(self.ports[name]))
        if name == "schedule":
            return (*CELERY_COMMAND, "beat", "-l", "INFO", "--pidfile=")
        pool = ("-P", "solo") if name == "maintenance" else ("-P", "threads", "-c", "4")
        queue = "maintenance" if name == "maintenance" else "turns"
        return (
            *CELERY_COMMAND,
            "worker",
            "-n",
            f"{name}@%h",
            "-Q",
            queue,
            "-l",
            "INFO",
            *pool,
            *QUIET_WORKER_OPTIONS,
        )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not all(answers(f"{url}/readyz") for url in self.urls):
            self.revive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the site did not become ready; see {self.directory}")
            time.sleep(0.2)

    # --- breaking and mending --------------------------------------------------------------------

    def signal(self, name: str, kind: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if name in self.engines:  # a script may have started the server as its child
                os.killpg(self.processes[name].pid, kind)
            else:
                self.processes[name].send_signal(kind)

    def stop(self) -> None:
        for name in self.engines:
            self.signal(name, signal.SIGKILL)
        super().stop()

    def kill_server(self, server: EmbeddedServer) -> None:
        """kill -9 of the server and of every process it made."""
        if server.process is None:
            return
        family = psutil.Process(server.process.pid)
        for process in [*family.children(recursive=True), family]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        server.process.wait()

    def revive(self) -> list[str]:
        """Start again everything that has exited, servers first; return the names."""
        revived = []
        for server in (self.postgres, self.valkey):
            if not server.is_running:
                with contextlib.suppress(ServerProblem):
                    server.launch()
                    server.wait_ready()
                revived.append(server.name)
        for name, process in self.processes.items():
            if process.poll() is not None and name != "provider":
                self.spawn(name, self._command(name))
                revived.append(name)
        return revived


@contextlib.contextmanager
def frozen(server: EmbeddedServer) -> Iterator[None]:
    """SIGSTOP to a server and every process it made, then SIGCONT."""
    assert server.process is not None
    head = psutil.Process(server.process.pid)
    family = [head, *head.children(recursive=True)]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def running_site(*, redis_is_durable: bool, engines: Collection[str] = ()) -> Iterator[Site]:
    """Everything it started is gone at the end, with its data unless it shall be looked at."""
    with directory_of("faults") as directory:
        site = Site(directory, redis_is_durable=redis_is_durable, engines=engines)
        try:
            site.start()
            yield site
        finally:
            site.stop()
