"""One look at the database: read only, one moment for all statements, and never for long (D1, D4)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db import connection, transaction

STATEMENT_TIMEOUT_SECONDS = 5


@contextmanager
def open_snapshot() -> Iterator[datetime]:
    """Everything read inside belongs to this instant of the database's clock.

    Inside a transaction of the caller's, that one is the moment, and its rules stay as they are.
    """
    nested = connection.in_atomic_block
    with transaction.atomic(), connection.cursor() as cursor:
        if not nested:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute(f"SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT_SECONDS}s'")
        cursor.execute("SELECT statement_timestamp()")  # which also takes the snapshot
        yield cursor.fetchone()[0]


def get_database_time() -> datetime:
    """By the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
        return moment


def accepts_writes() -> bool:
    """Whether a transaction that asks for nothing may write: neither on a standby nor on a server set to reading."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT NOT pg_is_in_recovery() AND current_setting('default_transaction_read_only') = 'off'"
        )
        return bool(cursor.fetchone()[0])
