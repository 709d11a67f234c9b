"""What billing tells a user: once per dedupe key, shown until dismissed; the only writer of BillingNotice."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from celery import current_app
from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils import timezone
from kombu.exceptions import OperationalError

from billing import accounts
from billing.models import BillingNotice

logger = logging.getLogger(__name__)

MAX_SHOWN_NOTICES = 50
NOTICE_EMAIL_TASK = "billing.tasks.mail_notice"
NoticeData = Mapping[str, str | int | bool]


@dataclass(frozen=True, kw_only=True)
class Notice:
    id: int
    kind: str
    data: dict[str, str | int | bool]
    created_at: datetime


def post_notice(user_id: int, kind: str, *, dedupe_key: str, data: NoticeData, mail: bool = False) -> bool:
    """False when it was told before; then it says what is true now, and a dismissed one stays dismissed.

    `mail`: it also goes out by e-mail, after commit, if its kind has words for that.
    """
    account = accounts.get_or_create_account(user_id)
    key = {"account": account, "dedupe_key": dedupe_key}
    if BillingNotice.objects.filter(**key).update(data=dict(data)):
        return False
    notice = BillingNotice(kind=kind, data=dict(data), **key)
    BillingNotice.objects.bulk_create([notice], ignore_conflicts=True)
    if mail:
        posted = BillingNotice.objects.values_list("pk", flat=True).get(**key)
        transaction.on_commit(lambda: _enqueue_notice_email(posted))
    return True


def _enqueue_notice_email(notice_id: int) -> None:
    """By the task's name: tasks stand above. What a dead broker loses, the next sweep finds."""
    try:
        current_app.send_task(NOTICE_EMAIL_TASK, args=[notice_id], retry=False)
    except OperationalError:
        logger.warning("The mail of notice %s waits: no broker.", notice_id)


def claim_notice_email(notice_id: int) -> bool:
    """One winner sends it."""
    return bool(BillingNotice.objects.filter(pk=notice_id, mailed_at=None).update(mailed_at=Now()))


def unclaim_notice_email(notice_id: int) -> None:
    BillingNotice.objects.filter(pk=notice_id).update(mailed_at=None)


def list_open_notices(user_id: int) -> list[Notice]:
    """Not dismissed, the newest first."""
    rows = BillingNotice.objects.filter(account__user=user_id, dismissed_at=None).order_by("-pk")[
        :MAX_SHOWN_NOTICES
    ]
    return [Notice(id=row.pk, kind=row.kind, data=row.data, created_at=row.created_at) for row in rows]


def dismiss_notice(user_id: int, notice_id: int) -> bool:
    """False when the user has no such notice; twice is once."""
    mine = BillingNotice.objects.filter(pk=notice_id, account__user=user_id)
    return bool(mine.filter(dismissed_at=None).update(dismissed_at=Now())) or mine.exists()


# MERGED expiring: A word to those whose credit ends within a week: one per lot of which something is left (B9.5).

EXPIRY_NOTICE_PERIOD = timedelta(days=7)
EXPIRY_NOTICE_BATCH_SIZE = 1_000  # in one run; the rest in the next

_EXPIRING_LOTS_SQL = """
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


def post_credit_expiry_notices() -> int:
    """How many were told."""
    now = timezone.now()
    with connection.cursor() as cursor:
        cursor.execute(_EXPIRING_LOTS_SQL, [now, now + EXPIRY_NOTICE_PERIOD, EXPIRY_NOTICE_BATCH_SIZE])
        soon = cursor.fetchall()
    for lot_id, user_id, left_cents, ends in soon:
        post_notice(
            user_id,
            "credits_expire",
            dedupe_key=f"credits_expire:{lot_id}",
            data={"amount_cents": left_cents, "expires_at": f"{ends:%Y-%m-%dT%H:%M:%SZ}"},
            mail=True,
        )
    return len(soon)
