"""Restore the database after a test that commits; truncating all tables would take a hundred times as long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from django.db import connection
from django.test import TransactionTestCase

SEED = "pristine"  # holds copies of the rows that migrations created
KEPT = ("django_migrations", "django_content_type", "auth_permission")  # no test changes these


def remember(server: psycopg.Connection[tuple[object, ...]]) -> None:
    """Copy the rows of a freshly migrated database into a schema beside them."""
    server.execute(f"create schema {SEED}")
    for name in _tables(server.execute(_TABLES).fetchall()):
        if server.execute(f'select exists (select from "{name}")').fetchone() == (True,):
            server.execute(f'create table {SEED}."{name}" as table "{name}"')


@contextmanager
def quickly() -> Iterator[None]:
    """Replace Django's flush, which truncates every table and recreates permissions and defaults."""
    with connection.cursor() as cursor:
        cursor.execute(_TABLES)
        names = _tables(cursor.fetchall())
        cursor.execute("select tablename from pg_tables where schemaname = %s", [SEED])
        seeded = _tables(cursor.fetchall())
    cases = (f"case when exists (select from \"{name}\") then '{name}' end" for name in names)
    filled = f"select array_remove(array[{', '.join(cases)}], null)"  # a test fills few tables; deleting would take ten times as many statements

    def clean(case: TransactionTestCase) -> None:
        with connection.cursor() as cursor:
            cursor.execute(filled)
            statements = [f'delete from "{name}"' for name in {*cursor.fetchone()[0], *seeded}]
            statements += [f'insert into "{name}" select * from {SEED}."{name}"' for name in seeded]
            cursor.execute("; ".join([_AS_REPLICA, *statements, _AS_ORIGIN]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", clean)
        yield


def delete_audit_events() -> None:
    """Remove the rows of a fixture that commits; the append-only log must be emptied by force."""
    from diagnostics.models import AuditEvent  # the apps are not loaded when this module is

    with connection.cursor() as cursor:
        cursor.execute(f"{_AS_REPLICA}; delete from {AuditEvent._meta.db_table}; {_AS_ORIGIN}")


# In replica mode no trigger fires, neither for foreign keys nor for forbidden changes.
_AS_REPLICA, _AS_ORIGIN = (
    "set session_replication_role = replica",
    "set session_replication_role = origin",
)
_TABLES = "select tablename from pg_tables where schemaname = 'public'"


def _tables(rows: list[tuple[object, ...]]) -> list[str]:
    return [str(name) for (name,) in rows if name not in KEPT]
