"""Commits that need not be on disk before the next step, and the wait until all before them are.

Postgres writes its log in one order: whatever is committed with `LATER` lasts as soon as any ordinary commit after it
does. So a road of several commits waits for the disk once, where something is promised: a message is accepted, a turn
is opened, an ending stands. Rows are visible to everybody at once either way; only a crash of Postgres itself, within
the fraction of a second its log writer takes, can tell the difference.
"""

from __future__ import annotations

from django.db import connection

LATER = "set_config('synchronous_commit', 'off', true) = 'off'"  # true in a WHERE, for its transaction alone


def settle() -> None:
    """Return when everything committed before, here or elsewhere, survives a crash of the database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_logical_emit_message(true, 'pilothouse', '')")  # a commit of nothing else
