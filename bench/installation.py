"""Run a whole installation of real processes on private servers, for the bench and for fault runs."""

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
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from config.dev.servers import EmbeddedPostgres, EmbeddedValkey, signal_on_parent_death, start_servers

ROOT = Path(__file__).resolve().parent.parent


class InstallationProblem(Exception):
    """Raised when the run cannot continue; the message says why."""


class Installation:
    """Servers, the fake provider and the processes started on them."""

    def __init__(self, directory: Path, *, redis_is_durable: bool = True) -> None:
        self.directory = directory
        self.postgres = EmbeddedPostgres(directory / "postgres", durable=True)
        self.valkey = EmbeddedValkey(directory / "valkey", durable=redis_is_durable)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment: dict[str, str] = {}
        self.provider_port = 0

    def prepare(self, *, site_url: str, model: str, grace_seconds: int) -> None:
        """Start the servers and the provider and migrate the database, so that processes can be started."""
        start_servers(self.valkey, self.postgres)
        self.provider_port = self._start_provider()
        (self.directory / "static").mkdir(exist_ok=True)
        self.environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "PILOTHOUSE_ENVIRONMENT": "development",
            "SECRET_KEY": secrets.token_hex(32),
            "SITE_URL": site_url,
            "DATABASE_URL": self.postgres.url,
            "REDIS_URL": self.valkey.url,
            "OPENAI_BASE_URL": self.provider_url,
            "OPENAI_API_KEY": "x",
            "OPENAI_MODEL": model,
            "ANTHROPIC_API_KEY": "",
            "STATIC_ROOT": str(self.directory / "static"),
            "WORKSPACE_ROOT": str(self.directory / "workspace"),
            "TURN_GRACE_SECONDS": str(grace_seconds),
            "PYTHONWARNINGS": "ignore",
            "NO_COLOR": "1",
            "METRICS_ALLOWED_CIDRS": "127.0.0.0/8",
            # Many clients come from one address and a few accounts, so their limits are raised.
            "SOCKETS_PER_ACCOUNT": "100000",
            "STREAMS_PER_ACCOUNT": "100000",
            "CONNECTIONS_PER_ADDRESS": "1000000",
        }
        self.environment |= self.start_engines()
        self.run("config.bootstrap")

    def start_engines(self) -> dict[str, str]:
        """Start the proxies in front of the servers, and return the variables that point to them."""
        return {}

    @property
    def provider_url(self) -> str:
        return f"http://127.0.0.1:{self.provider_port}/v1"

    def run(self, module: str, *arguments: str) -> bytes:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise InstallationProblem(f"{module} failed:\n{done.stderr.decode()[-2000:]}")
        return done.stdout

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
                preexec_fn=signal_on_parent_death(signal.SIGKILL),
            )

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def stop(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)  # it may have been suspended
                process.kill()
        for process in self.processes.values():
            process.wait()
        self.postgres.stop()
        self.valkey.stop()

    def _start_provider(self) -> int:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.fake_provider", "--port", "0"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            preexec_fn=signal_on_parent_death(signal.SIGKILL),
        )
        self.processes["provider"] = process
        assert process.stdout is not None
        return int(json.loads(process.stdout.readline())["port"])


@contextlib.contextmanager
def directory_of(name: str) -> Iterator[Path]:
    """Create a directory that servers of another user can reach; it is kept if it contains `keep`."""
    directory = Path(tempfile.mkdtemp(prefix=f"pilothouse-{name}-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        if (directory / KEPT).exists():
            print(f"logs and data are kept in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


KEPT = "keep"


def keep(directory: Path) -> None:
    """Keep the directory and its logs."""
    (directory / KEPT).touch()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False
