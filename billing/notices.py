"""What billing tells a user: once per dedupe key, shown until dismissed; the only writer of BillingNotice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models.functions import Now

from billing import accounts
from billing.models import BillingNotice

SHOWN = 50
Data = Mapping[str, str | int | bool]


@dataclass(frozen=True, kw_only=True)
class Notice:
    id: int
    kind: str
    data: dict[str, str | int | bool]
    created_at: datetime


def post(user_id: int, kind: str, *, dedupe_key: str, data: Data) -> bool:
    """False when it was told before; then it says what is true now, and a dismissed one stays dismissed."""
    account = accounts.get_or_create(user_id)
    key = {"account": account, "dedupe_key": dedupe_key}
    if BillingNotice.objects.filter(**key).update(data=dict(data)):
        return False
    notice = BillingNotice(kind=kind, data=dict(data), **key)
    BillingNotice.objects.bulk_create([notice], ignore_conflicts=True)
    return True


def open_ones(user_id: int) -> list[Notice]:
    """Not dismissed, the newest first."""
    rows = BillingNotice.objects.filter(account__user=user_id, dismissed_at=None).order_by("-pk")[:SHOWN]
    return [Notice(id=row.pk, kind=row.kind, data=row.data, created_at=row.created_at) for row in rows]


def dismiss(user_id: int, notice_id: int) -> bool:
    """False when the user has no such notice; twice is once."""
    mine = BillingNotice.objects.filter(pk=notice_id, account__user=user_id)
    return bool(mine.filter(dismissed_at=None).update(dismissed_at=Now())) or mine.exists()
