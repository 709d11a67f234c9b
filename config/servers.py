"""Private Postgres and Valkey servers for a laptop and for tests: found, started, waited for, stopped."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from config.binaries import ServerProblem, postgres_binaries, valkey_binary
from config.rights import demotion, give

LEAST_FREE_BYTES = 300 * 1024 * 1024  # an empty cluster with its first journal files takes 60 MB
START_SECONDS = 60  # a cluster that was killed replays its journal first
STOP_SECONDS = 15
PORT_ATTEMPTS = 5  # a free port may be taken between our look and the server's
OWN_PORTS = range(20_000, 32_768)  # below Linux' ephemeral ones
REDIS_DATABASES = 64  # one for each parallel test process
_PR_SET_PDEATHSIG = 1


class Server:
    """One child process with a directory of its own, on a free loopback port, behind a random password."""

    name: ClassVar[str]
    stop_signals: ClassVar[Sequence[signal.Signals]]

    def __init__(self, directory: Path, *, durable: bool) -> None:
        self.directory = directory.resolve()
        self.durable = durable
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.promised = False  # others know its address: it is this port or none
        self._kept: socket.socket | None = None  # holds that port until the server takes it

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def password(self) -> str:
        return (self.directory / "password").read_text()

    def promise(self) -> str:
        """The address it will have, so that those who need it start beside it."""
        self._own_directory()
        self.promised = True
        self._kept = socket.socket()
        self._kept.bind(("127.0.0.1", 0))
        self.port = self._kept.getsockname()[1]
        return self.url

    def prepare(self) -> None:
        """What a first start needs, and what takes long; nothing where it was done before."""
        self._own_directory()

    def launch(self) -> None:
        """Start without waiting, so that several servers come up side by side; again means: on the same port."""
        self.prepare()
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        self.port = self.port or free_port()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*demotion(self.directory, self.stop_signals[0]), *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C reaches us; we stop servers last
                preexec_fn=None if os.geteuid() == 0 else dies_with_parent(self.stop_signals[0]),  # noqa: PLW1509
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        attempts = 1
        while not self._answers():
            if not self.running and self._port_was_taken() and attempts < PORT_ATTEMPTS and not self.promised:
                attempts += 1
                self.port = 0
                self.launch()
            elif not self.running:
                raise ServerProblem(self._why_it_died())
            elif time.monotonic() > deadline:
                self.stop()
                raise ServerProblem(f"{self.name} did not answer within {START_SECONDS} s; see {self.log}")
            time.sleep(0.02)

    def settle(self) -> None:
        """Returns when what a first start made is on the disk."""

    def stop(self) -> None:
        """Ask kindly, then firmly; returns when the process is gone."""
        process, self.process = self.process, None
        if process is None:
            return
        for kindness in (*self.stop_signals, signal.SIGKILL):
            process.send_signal(kindness)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
                return

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def url(self) -> str:
        raise NotImplementedError

    def _own_directory(self) -> None:
        """Make the directory and its password once; both survive restarts."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise ServerProblem(f"Cannot make {self.directory}: {problem.strerror}.") from problem
        if shutil.disk_usage(self.directory).free < LEAST_FREE_BYTES:
            raise ServerProblem(f"Less than 300 MB are free at {self.directory}: free some disk space first.")
        self._own(self.directory, 0o700)
        secret = self.directory / "password"
        if not secret.exists():
            secret.write_text(secrets.token_urlsafe(24))
            self._own(secret, 0o600)

    def _own(self, path: Path, mode: int) -> None:
        path.chmod(mode)
        give(path)

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def _port_was_taken(self) -> bool:
        return "already in use" in self._last_words()

    def _why_it_died(self) -> str:
        words = self._last_words()
        if "No space left on device" in words:
            return f"{self.name} stopped because the disk is full ({self.directory})."
        told = [
            line for line in words.splitlines() if "FATAL" in line or "rror" in line
        ] or words.splitlines()
        return (
            f"{self.name} did not start: {told[-1].strip() if told else 'it said nothing'} (see {self.log})"
        )


class Postgres(Server):
    """A cluster of our own; without `durable` it trades safety for speed (tests)."""

    name = "Postgres"
    stop_signals = (signal.SIGINT, signal.SIGQUIT)  # fast shutdown, then immediate
    user = "pilothouse"
    _new = False  # made by this process, and perhaps not on the disk yet

    @property
    def url(self) -> str:
        return self.database_url("pilothouse")

    def database_url(self, database: str) -> str:
        return f"postgres://{self.user}:{self.password}@127.0.0.1:{self.port}/{database}"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def wait_ready(self) -> None:
        super().wait_ready()
        import psycopg

        with psycopg.connect(self.database_url("postgres"), autocommit=True) as connection:
            found = connection.execute("select 1 from pg_database where datname = 'pilothouse'").fetchone()
            if not found:
                connection.execute("create database pilothouse")

    def prepare(self) -> None:
        super().prepare()
        self.binaries = postgres_binaries(self.data)
        if (self.data / "PG_VERSION").exists():
            return
        shutil.rmtree(self.data, ignore_errors=True)  # what an interrupted first start left
        made = self._initdb(
            f"--username={self.user}",
            f"--auth={'scram-sha-256' if self.durable else 'md5'}",  # its thousands of rounds are a third of a connection
            f"--pwfile={self.directory / 'password'}",
            "--encoding=UTF8",
            "--locale=C.UTF-8" if sys.platform == "linux" else "--locale=en_US.UTF-8",
            "--no-instructions",
            "--no-sync",  # while the others start: see settle
        )
        if made.returncode:
            self.log.write_text(made.stdout + made.stderr)
            shutil.rmtree(self.data, ignore_errors=True)
            raise ServerProblem(self._why_it_died())
        self._new = True

    def settle(self) -> None:
        if self._new and self.durable:
            self._initdb("--sync-only")
            self._new = False

    def _initdb(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *demotion(self.directory, signal.SIGTERM),
                str(self.binaries / "initdb"),
                f"--pgdata={self.data}",
                *options,
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
        )

    def _command(self) -> list[str]:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "300",
            "shared_buffers": "128MB",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "lc_messages": "C",
        }
        if not self.durable:
            options |= {
                "fsync": "off",
                "synchronous_commit": "off",
                "full_page_writes": "off",
                "max_wal_size": "4GB",
                "jit": "off",  # of tables nobody analysed it expects much, and compiles for a few rows
            }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return [str(self.binaries / "postgres"), "-D", str(self.data), *settings]

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.database_url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


class Valkey(Server):
    """Redis' free twin; with `durable` it writes every change to an append-only file."""

    name = "Valkey"
    stop_signals = (signal.SIGTERM,)

    @property
    def url(self) -> str:
        return self.database_url(0)

    def database_url(self, number: int) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/{number}"

    def _command(self) -> list[str]:
        settings = self.directory / "valkey.conf"
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {self.directory}",
            f"requirepass {self.password}",
            f"databases {REDIS_DATABASES}",
            "maxmemory-policy noeviction",
            'save ""',
            f"appendonly {'yes' if self.durable else 'no'}",
            "appendfsync everysec",
        ]
        settings.write_text("\n".join(lines) + "\n")
        self._own(settings, 0o600)
        return [str(valkey_binary()), str(settings)]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\n") < 2 and (part := connection.recv(256)):
                    answer += part
        except OSError:
            return False
        return b"+PONG" in answer


def free_port() -> int:
    """Of those that the kernel gives to nobody by itself: no connection out takes it before the server does."""
    while True:
        port = secrets.choice(OWN_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def dies_with_parent(kindness: signal.Signals) -> Callable[[], None] | None:
    """For `preexec_fn`: the kernel signals the child when the starting thread dies, also by kill -9."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)

    def ask_the_kernel() -> None:
        library.prctl(_PR_SET_PDEATHSIG, int(kindness), 0, 0, 0)

    return ask_the_kernel


@contextlib.contextmanager
def private_servers(*, prefix: str = "pilothouse-") -> Iterator[tuple[Postgres, Valkey]]:
    """A throw-away pair on free ports; gone, with its data, at the end."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    directory.chmod(0o755)  # the demoted servers reach their own directories through it
    postgres = Postgres(directory / "postgres", durable=False)
    valkey = Valkey(directory / "valkey", durable=False)
    try:
        start(valkey, postgres)
        yield postgres, valkey
    finally:
        postgres.stop()
        valkey.stop()
        shutil.rmtree(directory, ignore_errors=True)


def start(*servers: Server) -> None:
    """All side by side; none is left running when one of them fails."""
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_ready()
            server.settle()
    except BaseException:
        for server in servers:
            server.stop()
        raise


def main(arguments: Sequence[str]) -> int:
    if list(arguments) != ["test-env"]:
        sys.stderr.write("usage: python -m config.servers test-env\n")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with private_servers() as (postgres, valkey):
            sys.stdout.write(f"export DATABASE_URL={postgres.url}\nexport REDIS_URL={valkey.url}\n")
            sys.stdout.write("export PILOTHOUSE_ENVIRONMENT=test\n")
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except ServerProblem as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
