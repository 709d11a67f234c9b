"""DATABASE_URL: what its query says reaches every connection to Postgres, and mistakes in it are named at the start."""

from __future__ import annotations

import json
import os
from uuid import uuid4

import psycopg
import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection
from django.db.backends.postgresql.base import DatabaseWrapper

from config import env
from config.core.db import build_connection_string
from copilot.worker import heartbeat
from diagnostics.probes import servers
from linking.outbound.worker import _TurnLocks
from tests.support.programs import run_manage_command

NAME = "PILOTHOUSE_DATABASE_TRIED_HERE"
DEFAULTS = {"server_side_binding": True, "prepare_threshold": 3, "connect_timeout": 5, "keepalives_idle": 10}


def read(monkeypatch: pytest.MonkeyPatch, url: str) -> dict[str, object]:
    monkeypatch.setenv(NAME, url)
    default = env.parse_database_url("postgres://default/default", DEFAULTS)
    return env.read_variable(NAME, env.database_url(DEFAULTS), default)


def options(monkeypatch: pytest.MonkeyPatch, query: str) -> dict[str, object]:
    found = read(monkeypatch, f"postgres://ada:secret@db:5432/pilothouse?{query}")["OPTIONS"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("query", "name", "value"),
    [
        ("sslmode=verify-full", "sslmode", "verify-full"),
        ("sslrootcert=/etc/ca.pem", "sslrootcert", "/etc/ca.pem"),
        ("sslcert=/etc/mine.pem", "sslcert", "/etc/mine.pem"),
        ("sslkey=/etc/mine.key", "sslkey", "/etc/mine.key"),
        ("channel_binding=require", "channel_binding", "require"),
        ("application_name=pilothouse", "application_name", "pilothouse"),
        ("target_session_attrs=read-write", "target_session_attrs", "read-write"),
        ("options=-c%20lock_timeout%3D500", "options", "-c lock_timeout=500"),
        ("connect_timeout=9", "connect_timeout", 9),
        ("keepalives_idle=77", "keepalives_idle", 77),
        ("prepare_threshold=0", "prepare_threshold", 0),
        ("prepare_threshold=none", "prepare_threshold", None),
        ("server_side_binding=false", "server_side_binding", False),
    ],
)
def test_an_option_of_the_url_wins_over_our_default(
    monkeypatch: pytest.MonkeyPatch, query: str, name: str, value: object
):
    assert options(monkeypatch, query) == {**DEFAULTS, name: value}


def test_our_defaults_hold_where_the_url_says_nothing(monkeypatch: pytest.MonkeyPatch):
    assert read(monkeypatch, "postgres://db/pilothouse")["OPTIONS"] == DEFAULTS
    assert read(monkeypatch, "")["NAME"] == "default"


def test_settings_keep_what_the_url_says():
    url = "postgres://db/pilothouse?sslmode=verify-full&conn_max_age=60&connect_timeout=9"
    shown = (
        "import json; from django.conf import settings; print(json.dumps(settings.DATABASES, default=str))"
    )
    done = run_manage_command(
        "shell", "--no-imports", "-c", shown, PILOTHOUSE_ENVIRONMENT="test", DATABASE_URL=url
    )
    database = json.loads(done.stdout)["default"]
    assert database["CONN_MAX_AGE"] == 60
    assert database["CONN_HEALTH_CHECKS"] is True
    assert database["OPTIONS"]["sslmode"] == "verify-full"
    assert database["OPTIONS"]["connect_timeout"] == 9
    assert database["OPTIONS"]["tcp_user_timeout"] == 20_000


def test_a_pooler_gets_nothing_that_outlasts_a_transaction():
    shown = (
        "import json; from django.conf import settings; print(json.dumps(settings.DATABASES, default=str))"
    )
    done = run_manage_command(
        "shell",
        "--no-imports",
        "-c",
        shown,
        PILOTHOUSE_ENVIRONMENT="test",
        DATABASE_URL="postgres://pooler:6432/pilothouse",
        DATABASE_DIRECT_URL="postgres://db/pilothouse",
    )
    databases = json.loads(done.stdout)
    assert databases["default"]["HOST"] == "pooler"
    assert databases["default"]["OPTIONS"]["prepare_threshold"] is None
    assert databases["default"]["DISABLE_SERVER_SIDE_CURSORS"] is True
    assert databases["direct"]["HOST"] == "db"
    assert databases["direct"]["OPTIONS"]["prepare_threshold"] == 3


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://ada:secret@db/pilothouse", "must begin with postgres://"),
        ("pilothouse", "must begin with postgres://"),
        ("postgres://ada:secret@db:port/pilothouse", "is not a valid URL"),
        ("postgres://ada:secret@db:5432/", "names no database"),
        ("postgres://ada:secret@db/pilothouse?sslmode=verify_full", "sslmode must be one of disable"),
        ("postgres://ada:secret@db/pilothouse?sslmod=require", "no connection option 'sslmod'"),
        (
            "postgres://ada:secret@db/pilothouse?connect_timeout=soon",
            "connect_timeout must be a whole number",
        ),
        (
            "postgres://ada:secret@db/pilothouse?server_side_binding=1",
            "server_side_binding must be true or false",
        ),
    ],
)
def test_a_mistake_is_named_without_the_password(monkeypatch: pytest.MonkeyPatch, url: str, told: str):
    with pytest.raises(ImproperlyConfigured, match=NAME) as refused:
        read(monkeypatch, url)
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)


# --- the test server speaks no TLS, so a connection that comes about under sslmode=require is in clear --------------


@pytest.mark.attack
def test_django_does_not_connect_in_clear_where_the_url_asks_for_tls():
    url = f"{os.environ['DATABASE_URL']}?sslmode=require"
    wanted = {**settings.DATABASES["default"], **env.parse_database_url(url, DEFAULTS)}
    with pytest.raises((OperationalError, psycopg.OperationalError), match="SSL"):
        DatabaseWrapper(wanted).connect()


@pytest.mark.attack
@pytest.mark.django_db
def test_no_other_connection_is_in_clear_where_the_url_asks_for_tls(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "sslmode", "require")
    with pytest.raises(psycopg.OperationalError, match="SSL"):
        heartbeat.HeartbeatThread(heartbeat.create_worker_identity(), list, ["turns"])._hold_lock()
    with pytest.raises(psycopg.OperationalError, match="SSL"):
        _TurnLocks().acquire(uuid4())
    with pytest.raises(psycopg.OperationalError, match="SSL"):
        servers._connect()


@pytest.mark.django_db
def test_every_other_connection_bears_the_options_of_the_url(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "application_name", "harbour")
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "options", "-c lock_timeout=123")
    asked = "select current_setting('application_name'), current_setting('lock_timeout')"
    with psycopg.connect(build_connection_string()) as plain, servers._connect() as probe:
        assert plain.execute(asked).fetchone() == ("harbour", "123ms")
        assert probe.execute(asked).fetchone() == ("harbour", "123ms")
        assert probe.execute("show statement_timeout").fetchone() == ("1s",)
