"""Connection strings of Postgres for code that opens connections beside Django's."""

from __future__ import annotations

from django.db import connection
from psycopg import pq
from psycopg.conninfo import make_conninfo


def list_libpq_parameters() -> frozenset[str]:
    """List the parameters that the installed libpq understands."""
    return frozenset(default.keyword.decode() for default in pq.Conninfo.get_defaults())


def build_connection_string(*, connect_timeout_seconds: int | None = None, server_options: str = "") -> str:
    """Return what libpq needs to connect as Django does, TLS and timeouts included.

    Picking single parameters once dropped `sslmode`, and such connections were in clear: only what belongs to Django
    or psycopg is left out here.
    """
    names = list_libpq_parameters()
    given = connection.get_connection_params()
    parameters = {name: value for name, value in given.items() if name in names}
    if connect_timeout_seconds is not None:
        parameters["connect_timeout"] = connect_timeout_seconds
    if server_options:
        parameters["options"] = f"{parameters.get('options', '')} {server_options}".strip()
    return make_conninfo(**parameters)
