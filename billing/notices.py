"""Post, list and dismiss billing notices; the only writer of BillingNotice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from celery import current_app
from django.db import transaction
from django.db.models import Exists, OuterRef, TextField, Value
from django.db.models.functions import Cast, Concat, Now
from django.utils import timezone
from kombu.exceptions import OperationalError

from billing import accounts
from billing.models import BillingNotice, LedgerEntry

log = structlog.get_logger(__name__)

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
    """Post a notice once per dedupe key. If it exists, update its data and return False; dismissed ones stay dismissed.

    `mail` also sends it by email after commit, if its kind has a template.
    """
    account = accounts.get_or_create_account(user_id)
    key = {"account": account, "dedupe_key": dedupe_key}
    if BillingNotice.objects.filter(**key).update(data=dict(data)):
        return False
    notice = BillingNotice(kind=kind, data=dict(data), **key)
    BillingNotice.objects.bulk_create([notice], ignore_conflicts=True)
    if mail:
        notice_id = BillingNotice.objects.values_list("pk", flat=True).get(**key)
        transaction.on_commit(lambda: _enqueue_notice_email(notice_id))
    return True


def _enqueue_notice_email(notice_id: int) -> None:
    try:
        # By name, because tasks import this module. If the broker loses it, the hourly sweep sends the email.
        current_app.send_task(NOTICE_EMAIL_TASK, args=[notice_id], retry=False)
    except OperationalError:
        log.warning("notice_email_not_enqueued", notice_id=notice_id, error="broker_unavailable")


def claim_notice_email(notice_id: int) -> bool:
    return bool(BillingNotice.objects.filter(pk=notice_id, mailed_at=None).update(mailed_at=Now()))


def unclaim_notice_email(notice_id: int) -> None:
    BillingNotice.objects.filter(pk=notice_id).update(mailed_at=None)


def list_open_notices(user_id: int) -> list[Notice]:
    rows = BillingNotice.objects.filter(account__user=user_id, dismissed_at=None).order_by("-pk")[
        :MAX_SHOWN_NOTICES
    ]
    return [Notice(id=row.pk, kind=row.kind, data=row.data, created_at=row.created_at) for row in rows]


def dismiss_notice(user_id: int, notice_id: int) -> bool:
    """Dismiss a notice, once or again. Return False if the user has no such notice."""
    notices = BillingNotice.objects.filter(pk=notice_id, account__user=user_id)
    return bool(notices.filter(dismissed_at=None).update(dismissed_at=Now())) or notices.exists()


# --- Credits that expire soon ---

EXPIRY_NOTICE_PERIOD = timedelta(days=7)
EXPIRY_NOTICE_BATCH_SIZE = 1_000  # per run of the task


def post_credit_expiry_notices() -> int:
    now = timezone.now()
    posted = BillingNotice.objects.filter(
        account=OuterRef("account"),
        dedupe_key=Concat(Value("credits_expire:"), Cast(OuterRef("pk"), TextField())),
    )
    lots = LedgerEntry.objects.open_lots().filter(
        ~Exists(posted), expires_at__gt=now, expires_at__lte=now + EXPIRY_NOTICE_PERIOD
    )
    rows = lots.order_by("expires_at").values_list("pk", "account__user_id", "left_cents", "expires_at")
    expiring_lots = list(rows[:EXPIRY_NOTICE_BATCH_SIZE])
    for lot_id, user_id, left_cents, expires_at in expiring_lots:
        post_notice(
            user_id,
            "credits_expire",
            dedupe_key=f"credits_expire:{lot_id}",
            data={"amount_cents": left_cents, "expires_at": f"{expires_at:%Y-%m-%dT%H:%M:%SZ}"},
            mail=True,
        )
    return len(expiring_lots)
