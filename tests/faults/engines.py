"""Servers that large installations put in front of ours, started from Debian's packages: PgBouncer, RabbitMQ."""

from __future__ import annotations

import os
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from bench.installation import InstallationProblem
from config.dev.servers import find_free_port

START_SECONDS = 60.0


@dataclass(frozen=True)
class Engine:
    """A server as a process of the site: its command, and the variables that lead to it."""

    name: str
    port: int
    command: tuple[str, ...]
    variables: dict[str, str]

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not _listens(self.port):
            if time.monotonic() > deadline:
                raise InstallationProblem(f"{self.name} did not start")
            time.sleep(0.1)


def make_pgbouncer(directory: Path, database_url: str) -> Engine:
    """Put PgBouncer in transaction mode before Postgres, with fewer connections than the site has threads."""
    folder = _make_folder(directory, "pgbouncer")
    parts = urlsplit(database_url)
    port = find_free_port()
    users = folder / "users.txt"
    users.write_text(f'"{parts.username}" "{parts.password}"\n')
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host={parts.hostname} port={parts.port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = scram-sha-256\nauth_file = {users}\n"
        "pool_mode = transaction\ndefault_pool_size = 20\nmax_client_conn = 1000\nserver_login_retry = 1\n"
    )
    pooled = urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}"))
    demoted = ("-u", "nobody") if os.geteuid() == 0 else ()  # it refuses to run as root
    return Engine(
        name="pgbouncer",
        port=port,
        command=(_find_program("pgbouncer"), *demoted, str(settings)),
        variables={"DATABASE_URL": pooled, "DATABASE_DIRECT_URL": database_url},
    )


def make_rabbitmq(directory: Path) -> Engine:
    """Let RabbitMQ carry the Celery messages."""
    folder = _make_folder(directory, "rabbitmq")
    port, distribution = find_free_port(), find_free_port()
    cookie = folder / ".erlang.cookie"
    cookie.write_text("PILOTHOUSE")
    cookie.chmod(0o400)
    server = next(
        iter(sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))), None
    )
    variables = {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"pilothouse{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
    }
    return Engine(
        name="rabbitmq",
        port=port,
        command=(
            "env",
            *(f"{name}={value}" for name, value in variables.items()),
            str(server or _find_program("rabbitmq-server")),
        ),
        variables={"CELERY_BROKER_URL": f"amqp://guest:guest@127.0.0.1:{port}//"},
    )


def _make_folder(directory: Path, name: str) -> Path:
    folder = directory / name
    folder.mkdir(mode=0o755)
    return folder


def _find_program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin:/sbin")
    if found is None:
        raise InstallationProblem(f"{name} is not installed: apt-get install {name}")
    return found


def _listens(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0
