"""Roll up old usage records into monthly sums and delete them."""

from __future__ import annotations

from datetime import timedelta

from django.db import connection
from django.utils import timezone

RECORD_RETENTION = timedelta(days=400)
ROLLUP_BATCH_SIZE = 5_000
_SUMMED_COLUMNS = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "cost_microdollars",
)

# One statement, so that exactly the deleted rows are added, even with concurrent runs or a crash.
_ROLLUP_SQL = f"""
    WITH chosen AS (
        SELECT call_id FROM billing_usagerecord WHERE occurred_at < %s
        ORDER BY occurred_at LIMIT %s FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM billing_usagerecord USING chosen
        WHERE billing_usagerecord.call_id = chosen.call_id RETURNING billing_usagerecord.*
    ), sums AS (
        INSERT INTO billing_monthlyusage AS kept (account_id, month, provider, model, calls, {", ".join(_SUMMED_COLUMNS)})
        SELECT account_id, date_trunc('month', occurred_at AT TIME ZONE 'UTC')::date, provider, model, count(*),
               {", ".join(f"sum({name})" for name in _SUMMED_COLUMNS)}
        FROM gone GROUP BY 1, 2, 3, 4
        ON CONFLICT (account_id, month, provider, model) DO UPDATE SET calls = kept.calls + excluded.calls,
            {", ".join(f"{name} = kept.{name} + excluded.{name}" for name in _SUMMED_COLUMNS)}
        RETURNING 1
    )
    SELECT count(*) FROM gone
"""  # noqa: S608 - the names are ours


def roll_up_old_records() -> int:
    """Roll up in batches, so that no statement locks many rows for long. Return the number of records."""
    rolled_up = 0
    while batch_count := _roll_up_batch():
        rolled_up += batch_count
    return rolled_up


def _roll_up_batch() -> int:
    with connection.cursor() as cursor:
        cursor.execute(_ROLLUP_SQL, [timezone.now() - RECORD_RETENTION, ROLLUP_BATCH_SIZE])
        return int(cursor.fetchone()[0])
