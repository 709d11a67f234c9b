"""What billing tells a user: once per dedupe key, shown until dismissed; the only writer of BillingNotice."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from celery import current_app
from django.db import transaction
from django.db.models.functions import Now
from kombu.exceptions import OperationalError

from billing import accounts
from billing.models import BillingNotice

logger = logging.getLogger(__name__)

SHOWN = 50
MAIL_TASK = "billing.tasks.mail_notice"
Data = Mapping[str, str | int | bool]


@dataclass(frozen=True, kw_only=True)
class Notice:
    id: int
    kind: str
    data: dict[str, str | int | bool]
    created_at: datetime


def post(user_id: int, kind: str, *, dedupe_key: str, data: Data, mail: bool = False) -> bool:
    """False when it was told before; then it says what is true now, and a dismissed one stays dismissed.

    `mail`: it also goes out by e-mail, after commit, if its kind has words for that.
    """
    account = accounts.get_or_create(user_id)
    key = {"account": account, "dedupe_key": dedupe_key}
    if BillingNotice.objects.filter(**key).update(data=dict(data)):
        return False
    notice = BillingNotice(kind=kind, data=dict(data), **key)
    BillingNotice.objects.bulk_create([notice], ignore_conflicts=True)
    if mail:
        posted = BillingNotice.objects.values_list("pk", flat=True).get(**key)
        transaction.on_commit(lambda: _have_it_mailed(posted))
    return True


def _have_it_mailed(notice_id: int) -> None:
    """By the task's name: tasks stand above. What a dead broker loses, the next sweep finds."""
    try:
        current_app.send_task(MAIL_TASK, args=[notice_id], retry=False)
    except OperationalError:
        logger.warning("The mail of notice %s waits: no broker.", notice_id)


def claim_mail(notice_id: int) -> bool:
    """One winner sends it."""
    return bool(BillingNotice.objects.filter(pk=notice_id, mailed_at=None).update(mailed_at=Now()))


def unclaim_mail(notice_id: int) -> None:
    BillingNotice.objects.filter(pk=notice_id).update(mailed_at=None)


def open_ones(user_id: int) -> list[Notice]:
    """Not dismissed, the newest first."""
    rows = BillingNotice.objects.filter(account__user=user_id, dismissed_at=None).order_by("-pk")[:SHOWN]
    return [Notice(id=row.pk, kind=row.kind, data=row.data, created_at=row.created_at) for row in rows]


def dismiss(user_id: int, notice_id: int) -> bool:
    """False when the user has no such notice; twice is once."""
    mine = BillingNotice.objects.filter(pk=notice_id, account__user=user_id)
    return bool(mine.filter(dismissed_at=None).update(dismissed_at=Now())) or mine.exists()
