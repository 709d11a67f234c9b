"""A whole installation of real processes for a fault run: two of web, two of turns, maintenance, beat, servers."""

from __future__ import annotations

import contextlib
import json
import os
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
from pathlib import Path

import psutil

from config.run import CELERY, QUIET
from config.servers import Postgres, Server, ServerProblem, Valkey, dies_with_parent, free_port, start

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = "fake:tokens=60,gap_ms=25,first_ms=40"
START_SECONDS = 90.0
WEB, TURNS = ("web1", "web2"), ("turns1", "turns2")


class Site:
    """Knows how to start every part, and start it again after it was killed."""

    def __init__(self, directory: Path, *, redis_is_durable: bool) -> None:
        self.directory = directory
        self.postgres = Postgres(directory / "postgres", durable=True)
        self.valkey = Valkey(directory / "valkey", durable=redis_is_durable)
        self.ports = {name: free_port() for name in WEB}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment: dict[str, str] = {}

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports.values()]

    # --- starting --------------------------------------------------------------------------------

    def start(self) -> None:
        start(self.valkey, self.postgres)
        self.environment = self._environment(self._start_provider())
        subprocess.run([sys.executable, "-m", "config.prepare"], cwd=ROOT, env=self.environment, check=True)
        for name in (*WEB, *TURNS, "maintenance", "schedule"):
            self.spawn(name)
        self.wait_until_ready()

    def _environment(self, provider_port: int) -> dict[str, str]:
        return os.environ | {
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "PILOTHOUSE_ENVIRONMENT": "development",
            "SECRET_KEY": secrets.token_hex(32),
            "SITE_URL": self.urls[0],
            "DATABASE_URL": self.postgres.url,
            "REDIS_URL": self.valkey.url,
            "OPENAI_BASE_URL": f"http://127.0.0.1:{provider_port}/v1",
            "OPENAI_API_KEY": "x",
            "OPENAI_MODEL": MODEL,
            "ANTHROPIC_API_KEY": "",
            "STATIC_ROOT": str(self.directory / "static"),
            "WORKSPACE_ROOT": str(self.directory / "workspace"),
            "TURN_GRACE_SECONDS": "2",
            "TURN_WAKEUPS": "list",
            "REDIS_KEY_PREFIX": "ph",
            "PYTHONWARNINGS": "ignore",
            "NO_COLOR": "1",
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

    def spawn(self, name: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self._command(name),
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=dies_with_parent(signal.SIGKILL),
            )

    def _command(self, name: str) -> tuple[str, ...]:
        if name in WEB:
            return (sys.executable, "-m", "config.web", "--port", str(self.ports[name]))
        if name == "schedule":
            return (*CELERY, "beat", "-l", "INFO", "--pidfile=")
        pool = ("-P", "solo") if name == "maintenance" else ("-P", "threads", "-c", "4")
        queue = "maintenance" if name == "maintenance" else "turns"
        return (*CELERY, "worker", "-n", f"{name}@%h", "-Q", queue, "-l", "INFO", *pool, *QUIET)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not all(_answers(f"{url}/readyz") for url in self.urls):
            self.revive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the site did not become ready; see {self.directory}")
            time.sleep(0.2)

    # --- breaking and mending --------------------------------------------------------------------

    def signal(self, name: str, kind: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.processes[name].send_signal(kind)

    def kill_server(self, server: Server) -> None:
        """kill -9 of the server and of every process it made."""
        if server.process is None:
            return
        family = psutil.Process(server.process.pid)
        for process in [*family.children(recursive=True), family]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        server.process.wait()

    def revive(self) -> list[str]:
        """Start again whatever is dead, servers first; the names of those."""
        revived = []
        for server in (self.postgres, self.valkey):
            if not server.running:
                with contextlib.suppress(ServerProblem):
                    server.launch()
                    server.wait_ready()
                revived.append(server.name)
        for name, process in self.processes.items():
            if process.poll() is not None and name != "provider":
                self.spawn(name)
                revived.append(name)
        return revived

    def stop(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.processes.values():
            process.wait()
        self.postgres.stop()
        self.valkey.stop()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


@contextlib.contextmanager
def running_site(*, redis_is_durable: bool, keep: bool = False) -> Iterator[Site]:
    """Everything it started is gone at the end, with its data unless it shall be looked at."""
    directory = Path(tempfile.mkdtemp(prefix="pilothouse-faults-"))
    directory.chmod(0o755)  # the demoted servers reach their own directories through it
    (directory / "static").mkdir()
    site = Site(directory, redis_is_durable=redis_is_durable)
    try:
        site.start()
        yield site
    finally:
        site.stop()
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
