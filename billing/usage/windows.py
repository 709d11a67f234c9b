"""Maintain the usage windows: rebuild lost rows, copy them to Redis, and verify them against the records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from django.db import connection, transaction
from django.utils import timezone

from billing import plans, redis_counters
from billing.models import UsageWindow
from billing.redis_counters import RedisCopy, WindowAmount
from billing.selectors import usage_status
from billing.selectors.usage_status import UsageStatus
from config.core.db import fetch_all

RECORD_RETENTION = timedelta(days=400)  # older records are rolled up
REPUBLISH_PERIOD = timedelta(minutes=10)  # how long failed publishes are repeated
WINDOW_BATCH_SIZE = 500

# Recompute the window `due` (account_id, kind, starts_on, known) from its records and resets, with the number
# of changes; no row if nothing was recorded. A known window is skipped without reading.
RECOMPUTED_WINDOW_SQL = """
    SELECT greatest(0, spent.microdollars - coalesce(forgiven.microdollars, 0)) AS used_microdollars,
           spent.changes + coalesce(forgiven.changes, 0) AS changes
    FROM (
        SELECT sum(cost_microdollars)::bigint AS microdollars, count(*) AS changes
        FROM billing_usagerecord AS record
        WHERE NOT due.known AND record.account_id = due.account_id AND record.cost_microdollars > 0
          AND record.occurred_at >= due.starts_on::timestamp AT TIME ZONE 'UTC'
          AND record.occurred_at < (due.starts_on + CASE due.kind WHEN 'DAY' THEN 1 ELSE 7 END)::timestamp
                                   AT TIME ZONE 'UTC'
    ) AS spent, (
        SELECT sum(CASE due.kind WHEN 'DAY' THEN daily_forgiven_microdollars
                   ELSE weekly_forgiven_microdollars END)::bigint AS microdollars,
               2 * count(*) AS changes
        FROM billing_usagereset AS reset
        WHERE NOT due.known AND reset.account_id = due.account_id AND reset.state = 'APPLIED'
          AND CASE due.kind WHEN 'DAY' THEN reset.day ELSE reset.week END = due.starts_on
    ) AS forgiven
    WHERE spent.changes > 0
"""

# A concurrent record either finds this row and adds to it, or has inserted it already; then this insert is ignored.
_REBUILD_WINDOWS_SQL = f"""
    INSERT INTO billing_usagewindow (account_id, kind, starts_on, used_microdollars, version, updated_at)
    SELECT due.account_id, due.kind, due.starts_on, lost.used_microdollars, lost.changes, %(now)s
    FROM (VALUES (%(account)s::bigint, 'DAY', %(day)s::date, false), (%(account)s, 'WEEK', %(week)s, false))
             AS due (account_id, kind, starts_on, known)
    CROSS JOIN LATERAL ({RECOMPUTED_WINDOW_SQL}) AS lost
    ORDER BY due.kind
    ON CONFLICT (account_id, kind, starts_on) DO NOTHING
"""  # noqa: S608 - constants alone


def load_usage_status(user_id: int, now: datetime) -> UsageStatus:
    """Read the status from the rows, after rebuilding windows whose row was lost."""
    status = usage_status.get_usage_status(user_id, now)
    if status.account_id is None or all(meter.version for meter in status.windows):
        return status
    day, week = status.daily.window.starts_on, status.weekly.window.starts_on
    with connection.cursor() as cursor:
        cursor.execute(
            _REBUILD_WINDOWS_SQL, {"account": status.account_id, "day": day, "week": week, "now": now}
        )
        rebuilt = cursor.rowcount
    return usage_status.get_usage_status(user_id, now) if rebuilt else status


def build_copies(status: UsageStatus) -> list[RedisCopy]:
    """Build everything that Redis keeps of a user's status."""
    amounts = [
        redis_counters.build_amount_copy(
            status.user_id,
            meter.window,
            WindowAmount(used_microdollars=meter.used_microdollars, version=meter.version),
        )
        for meter in status.windows
    ]
    return [*amounts, redis_counters.build_entitlement_copy(status.user_id, status.entitlement)]


def rebuild_copies(user_id: int, now: datetime) -> UsageStatus:
    """Create missing copies, then read again, because changes in between were not published."""
    before = load_usage_status(user_id, now)
    redis_counters.create_copies(build_copies(before))
    after = usage_status.get_usage_status(user_id, now)
    if after != before:
        redis_counters.publish_copies(build_copies(after))
    return after


def publish_recent_windows() -> int:
    """Publish recently changed windows again, in case the first publish failed. Return how many succeeded."""
    now = timezone.now()
    starts = {plans.get_week_window(now - REPUBLISH_PERIOD).starts_on, plans.get_week_window(now).starts_on}
    starts |= {plans.get_day_window(now - REPUBLISH_PERIOD).starts_on, plans.get_day_window(now).starts_on}
    rows = UsageWindow.objects.filter(starts_on__in=starts, updated_at__gt=now - REPUBLISH_PERIOD)
    published_count = 0
    for row in rows.select_related("account").iterator(chunk_size=WINDOW_BATCH_SIZE):
        published_count += redis_counters.try_publish_copies([_build_copy(row)])
    return published_count


def _build_copy(row: UsageWindow) -> RedisCopy:
    amount = WindowAmount(used_microdollars=row.used_microdollars, version=row.version)
    return redis_counters.build_amount_copy(
        row.account.user_id, _build_window(row.kind, row.starts_on), amount
    )


def _build_window(kind: str, starts_on: date) -> plans.LimitWindow:
    begins = datetime(starts_on.year, starts_on.month, starts_on.day, tzinfo=UTC)
    return plans.get_day_window(begins) if kind == UsageWindow.Kind.DAY else plans.get_week_window(begins)


# --- Verification ---


@dataclass(frozen=True)
class WindowMismatch:
    """A row that differs from the sum of its records minus what was forgiven."""

    account_id: int
    kind: str
    starts_on: date
    used_microdollars: int | None  # None if the row is missing
    right_microdollars: int


_MISMATCHES_SQL = f"""
    SELECT due.account_id, due.kind, due.starts_on, counted.used_microdollars,
           coalesce(lost.used_microdollars, 0) AS right_microdollars
    FROM (
        SELECT account_id, kind, starts_on, false FROM billing_usagewindow
        UNION
        SELECT DISTINCT account_id, kind,
               CASE kind WHEN 'DAY' THEN at ELSE date_trunc('week', at)::date END, false
        FROM (SELECT DISTINCT account_id, (occurred_at AT TIME ZONE 'UTC')::date AS at FROM billing_usagerecord
              WHERE account_id IS NOT NULL AND cost_microdollars > 0) AS recorded,
             (VALUES ('DAY'), ('WEEK')) AS kinds (kind)
    ) AS due (account_id, kind, starts_on, known)
    LEFT JOIN LATERAL ({RECOMPUTED_WINDOW_SQL}) AS lost ON true
    LEFT JOIN billing_usagewindow AS counted USING (account_id, kind, starts_on)
    WHERE counted.used_microdollars IS DISTINCT FROM coalesce(lost.used_microdollars, 0) AND due.starts_on > %s
    ORDER BY due.account_id, due.kind, due.starts_on
"""  # noqa: S608 - constants alone
_REPAIR_SQL = f"""
    INSERT INTO billing_usagewindow AS counted (account_id, kind, starts_on, used_microdollars, version, updated_at)
    SELECT due.account_id, due.kind, due.starts_on, coalesce(lost.used_microdollars, 0),
           coalesce(lost.changes, 0) + 1, %(now)s
    FROM (VALUES (%(account)s::bigint, %(kind)s::text, %(starts_on)s::date, false))
             AS due (account_id, kind, starts_on, known)
    LEFT JOIN LATERAL ({RECOMPUTED_WINDOW_SQL}) AS lost ON true
    ON CONFLICT (account_id, kind, starts_on) DO UPDATE
    SET used_microdollars = excluded.used_microdollars, version = counted.version + 1, updated_at = excluded.updated_at
"""  # noqa: S608 - constants alone


def find_window_mismatches() -> list[WindowMismatch]:
    """Find mismatches of windows whose records all still exist; older ones cannot be verified."""
    return fetch_all(WindowMismatch, _MISMATCHES_SQL, [(timezone.now() - RECORD_RETENTION).date()])


def repair_window(mismatch: WindowMismatch) -> None:
    """Recompute the row from its records while holding its lock."""
    key = {"account_id": mismatch.account_id, "kind": mismatch.kind, "starts_on": mismatch.starts_on}
    with transaction.atomic():
        empty = UsageWindow(**key, used_microdollars=0, version=0, updated_at=timezone.now())
        UsageWindow.objects.bulk_create([empty], ignore_conflicts=True)  # a missing row cannot be locked
        UsageWindow.objects.select_for_update().get(**key)
        with connection.cursor() as cursor:
            cursor.execute(
                _REPAIR_SQL,
                {
                    "account": mismatch.account_id,
                    "kind": mismatch.kind,
                    "starts_on": mismatch.starts_on,
                    "now": timezone.now(),
                },
            )
    redis_counters.try_publish_copies([_build_copy(UsageWindow.objects.select_related("account").get(**key))])
