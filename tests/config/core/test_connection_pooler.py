"""PgBouncer in transaction mode before Postgres: locks go past it, and doctor names one that nobody configured."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest
from django.db import connection, connections, transaction

from bench.installation import directory_of
from config.core.db import use_direct_connection
from diagnostics.probes import servers
from tests.faults.engines import make_pgbouncer

LOCK = 4711
needs_pgbouncer = pytest.mark.skipif(
    shutil.which("pgbouncer", path="/usr/sbin:/usr/bin") is None, reason="apt-get install pgbouncer"
)
pytestmark = [needs_pgbouncer, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def server_port() -> object:
    return connection.settings_dict["PORT"]


@pytest.fixture
def pooled_connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lead the default connection of this thread to a PgBouncer before the test server."""
    given = connection.settings_dict
    url = f"postgres://{given['USER']}:{given['PASSWORD']}@{given['HOST']}:{given['PORT']}/{given['NAME']}"
    connection.close()
    with directory_of("pooler") as directory:
        engine = make_pgbouncer(directory, url)
        process = subprocess.Popen(engine.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            engine.wait_ready()
            monkeypatch.setitem(connection.settings_dict, "PORT", engine.port)
            monkeypatch.setitem(
                connection.settings_dict, "OPTIONS", given["OPTIONS"] | {"prepare_threshold": None}
            )
            yield
        finally:
            connection.close()
            process.terminate()
            process.wait()


@pytest.fixture
def direct_connection(
    server_port: object, pooled_connection: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Configure the way past the pooler, as DATABASE_DIRECT_URL does."""
    past = connection.settings_dict | {"PORT": server_port}
    monkeypatch.setitem(connections.settings, "direct", past)
    direct = connections.create_connection("default")  # Django refuses other names in tests
    direct.settings_dict = past
    connections["direct"] = direct
    yield
    direct.close()
    del connections["direct"]


def _fetch(statement: str, *parameters: object) -> object:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchone()[0]


def _count_holders() -> object:
    return _fetch("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s", LOCK)


def test_doctor_names_a_pooler_in_transaction_mode(pooled_connection):
    found = servers.probe_pooler()
    assert found.status == "fail"
    assert "transaction mode" in found.detail
    assert "DATABASE_DIRECT_URL" in found.next_step


def test_doctor_accepts_a_pooler_with_a_way_past_it(direct_connection):
    assert servers.probe_pooler().status == "ok"
    assert servers.probe_postgres().status == "ok"


def test_doctor_finds_no_pooler_where_there_is_none():
    assert servers.probe_pooler().status == "skip"


def test_doctor_says_that_a_pooler_does_not_answer(direct_connection, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "PORT", 1)
    found = servers.probe_pooler()
    assert found.status == "fail"
    assert "DATABASE_URL" in found.next_step


def test_a_lock_past_the_pooler_outlasts_transactions_and_is_released(direct_connection):
    with use_direct_connection():
        _fetch("SELECT pg_advisory_lock(%s)", LOCK)
        holder = _fetch("SELECT pg_backend_pid()")
        with transaction.atomic():
            assert _fetch("SELECT pg_backend_pid()") == holder
        assert _count_holders() == 1
        assert _fetch("SELECT pg_advisory_unlock(%s)", LOCK) is True
        pooled_by_now = _count_holders()
    assert pooled_by_now == _count_holders() == 0


def test_the_connection_does_not_change_inside_a_transaction(direct_connection):
    with transaction.atomic(), pytest.raises(RuntimeError):
        use_direct_connection().__enter__()
