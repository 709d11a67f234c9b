"""A word to those whose credit ends within a week: one per lot of which something is left (B9.5)."""

from __future__ import annotations

from datetime import timedelta

from django.db import connection
from django.utils import timezone

from billing import notices

AHEAD = timedelta(days=7)
LOTS = 1_000  # in one run; the rest in the next

_SOON = """
    SELECT lot.id, account.user_id, (lot.amount_cents - coalesce(used.cents, 0))::bigint, lot.expires_at
    FROM billing_ledgerentry AS lot
    JOIN billing_account AS account ON account.id = lot.account_id
    LEFT JOIN LATERAL (
        SELECT sum(cents) AS cents FROM billing_ledgerallocation WHERE lot_id = lot.id
    ) AS used ON true
    WHERE lot.expires_at > %s AND lot.expires_at <= %s AND lot.amount_cents > coalesce(used.cents, 0)
      AND NOT EXISTS (
          SELECT 1 FROM billing_billingnotice AS told
          WHERE told.account_id = account.id AND told.dedupe_key = 'credits_expire:' || lot.id
      )
    ORDER BY lot.expires_at LIMIT %s
"""


def tell_ahead() -> int:
    """How many were told."""
    now = timezone.now()
    with connection.cursor() as cursor:
        cursor.execute(_SOON, [now, now + AHEAD, LOTS])
        soon = cursor.fetchall()
    for lot_id, user_id, left_cents, ends in soon:
        notices.post(
            user_id,
            "credits_expire",
            dedupe_key=f"credits_expire:{lot_id}",
            data={"amount_cents": left_cents, "expires_at": f"{ends:%Y-%m-%dT%H:%M:%SZ}"},
            mail=True,
        )
    return len(soon)
