"""Read the database at one moment: read-only, one snapshot for all statements, and with a time limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db import connection, transaction

STATEMENT_TIMEOUT_SECONDS = 5


@contextmanager
def open_snapshot() -> Iterator[datetime]:
    """Read everything inside at this instant of the database's clock.

    Inside a transaction of the caller, that transaction's own snapshot and settings apply.
    """
    nested = connection.in_atomic_block
    with transaction.atomic(), connection.cursor() as cursor:
        if not nested:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute(f"SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT_SECONDS}s'")
        cursor.execute("SELECT statement_timestamp()")  # this also takes the snapshot
        yield cursor.fetchone()[0]


def get_database_time() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
        return moment


def accepts_writes() -> bool:
    """Tell whether transactions may write by default: not on a standby or a read-only server."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT NOT pg_is_in_recovery() AND current_setting('default_transaction_read_only') = 'off'"
        )
        return bool(cursor.fetchone()[0])
