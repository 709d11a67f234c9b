"""The rows of days and weeks: made anew when lost, copied to Redis, and checked against what they add up (B5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from django.db import connection, transaction
from django.utils import timezone

from billing import counters, plans, queries
from billing.counters import Amount, Copy
from billing.models import UsageWindow
from billing.queries import Standing
from billing.usage.folding import KEPT

RECENTLY = timedelta(minutes=10)  # a failed publishing is repeated this long (B5.6)
BATCH = 500

# What the window `due` (account_id, kind, starts_on, known) holds by its records and resets (B5.7), and how often
# that moved; no row when nothing was recorded in it. Of a known window nothing is read.
RECOMPUTED = """
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

# A recording that comes meanwhile finds this row and adds to it, or has made it itself: then this one is ignored.
_MAKE_ANEW = f"""
    INSERT INTO billing_usagewindow (account_id, kind, starts_on, used_microdollars, version, updated_at)
    SELECT due.account_id, due.kind, due.starts_on, lost.used_microdollars, lost.changes, %(now)s
    FROM (VALUES (%(account)s::bigint, 'DAY', %(day)s::date, false), (%(account)s, 'WEEK', %(week)s, false))
             AS due (account_id, kind, starts_on, known)
    CROSS JOIN LATERAL ({RECOMPUTED}) AS lost
    ORDER BY due.kind
    ON CONFLICT (account_id, kind, starts_on) DO NOTHING
"""  # noqa: S608 - constants alone


def load(user_id: int, now: datetime) -> Standing:
    """By the rows; one that was lost although something was recorded is made anew first (B5.5)."""
    stands = queries.standing(user_id, now)
    if stands.account_id is None or all(meter.version for meter in stands.meters):
        return stands
    day, week = stands.daily.window.starts_on, stands.weekly.window.starts_on
    with connection.cursor() as cursor:
        cursor.execute(_MAKE_ANEW, {"account": stands.account_id, "day": day, "week": week, "now": now})
        made = cursor.rowcount
    return queries.standing(user_id, now) if made else stands


def copies(stands: Standing) -> list[Copy]:
    """Everything that Redis keeps of a standing."""
    amounts = [
        counters.amount_copy(
            stands.user_id,
            meter.window,
            Amount(used_microdollars=meter.used_microdollars, version=meter.version),
        )
        for meter in stands.meters
    ]
    return [*amounts, counters.entitlement_copy(stands.user_id, stands.entitlement)]


def rebuild(user_id: int, now: datetime) -> Standing:
    """Make the copies that are missing, then look again: what moved meanwhile was published to nobody (B5.5)."""
    before = load(user_id, now)
    counters.create(copies(before))
    after = queries.standing(user_id, now)
    if after != before:
        counters.publish(copies(after))
    return after


def publish_recent() -> int:
    """All windows whose row changed of late, in case their publishing failed; how many were told (B5.6)."""
    now = timezone.now()
    starts = {plans.week_of(now - RECENTLY).starts_on, plans.week_of(now).starts_on}
    starts |= {plans.day_of(now - RECENTLY).starts_on, plans.day_of(now).starts_on}
    rows = UsageWindow.objects.filter(starts_on__in=starts, updated_at__gt=now - RECENTLY)
    told = 0
    for row in rows.select_related("account").iterator(chunk_size=BATCH):
        told += counters.publish_or_count([_copy(row)])
    return told


def _copy(row: UsageWindow) -> Copy:
    amount = Amount(used_microdollars=row.used_microdollars, version=row.version)
    return counters.amount_copy(row.account.user_id, _window(row.kind, row.starts_on), amount)


def _window(kind: str, starts_on: date) -> plans.Window:
    begins = datetime(starts_on.year, starts_on.month, starts_on.day, tzinfo=UTC)
    return plans.day_of(begins) if kind == UsageWindow.Kind.DAY else plans.week_of(begins)


# --- whether they add up (B5.7) -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A row that is not the sum of its records less what was forgiven."""

    account_id: int
    kind: str
    starts_on: date
    used_microdollars: int | None  # None: the row is missing
    right_microdollars: int


_BROKEN = f"""
    SELECT due.account_id, due.kind, due.starts_on, counted.used_microdollars,
           coalesce(lost.used_microdollars, 0)
    FROM (
        SELECT account_id, kind, starts_on, false FROM billing_usagewindow
        UNION
        SELECT DISTINCT account_id, kind,
               CASE kind WHEN 'DAY' THEN at ELSE date_trunc('week', at)::date END, false
        FROM (SELECT DISTINCT account_id, (occurred_at AT TIME ZONE 'UTC')::date AS at FROM billing_usagerecord
              WHERE account_id IS NOT NULL AND cost_microdollars > 0) AS recorded,
             (VALUES ('DAY'), ('WEEK')) AS kinds (kind)
    ) AS due (account_id, kind, starts_on, known)
    LEFT JOIN LATERAL ({RECOMPUTED}) AS lost ON true
    LEFT JOIN billing_usagewindow AS counted USING (account_id, kind, starts_on)
    WHERE counted.used_microdollars IS DISTINCT FROM coalesce(lost.used_microdollars, 0) AND due.starts_on > %s
    ORDER BY due.account_id, due.kind, due.starts_on
"""  # noqa: S608 - constants alone
_REPAIR = f"""
    INSERT INTO billing_usagewindow AS counted (account_id, kind, starts_on, used_microdollars, version, updated_at)
    SELECT due.account_id, due.kind, due.starts_on, coalesce(lost.used_microdollars, 0),
           coalesce(lost.changes, 0) + 1, %(now)s
    FROM (VALUES (%(account)s::bigint, %(kind)s::text, %(starts_on)s::date, false))
             AS due (account_id, kind, starts_on, known)
    LEFT JOIN LATERAL ({RECOMPUTED}) AS lost ON true
    ON CONFLICT (account_id, kind, starts_on) DO UPDATE
    SET used_microdollars = excluded.used_microdollars, version = counted.version + 1, updated_at = excluded.updated_at
"""  # noqa: S608 - constants alone


def broken() -> Iterator[Broken]:
    """Of windows whose records are all still there; older ones cannot be judged any more (B3.2)."""
    with connection.cursor() as cursor:
        cursor.execute(_BROKEN, [(timezone.now() - KEPT).date()])
        rows = cursor.fetchall()
    for account_id, kind, starts_on, used, right in rows:
        yield Broken(
            account_id=account_id,
            kind=kind,
            starts_on=starts_on,
            used_microdollars=used,
            right_microdollars=right,
        )


def repair(one: Broken) -> None:
    """Rewrite the row from what was recorded; nothing is recorded in it meanwhile, for we hold it."""
    key = {"account_id": one.account_id, "kind": one.kind, "starts_on": one.starts_on}
    with transaction.atomic():
        empty = UsageWindow(**key, used_microdollars=0, version=0, updated_at=timezone.now())
        UsageWindow.objects.bulk_create([empty], ignore_conflicts=True)  # one that is missing cannot be held
        UsageWindow.objects.select_for_update().get(**key)
        with connection.cursor() as cursor:
            cursor.execute(
                _REPAIR,
                {
                    "account": one.account_id,
                    "kind": one.kind,
                    "starts_on": one.starts_on,
                    "now": timezone.now(),
                },
            )
    counters.publish_or_count([_copy(UsageWindow.objects.select_related("account").get(**key))])
