"""Credits as their owner sees them: what there is, what expires soon, and the statement page by page (B9.9)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date, datetime, time, timedelta
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.db.models import QuerySet
from django.utils import timezone

from billing.errors import InvalidRequest
from billing.models import Account, LedgerEntry, TopUp

PAGE_ENTRIES = 50
MOST_ENTRIES = 200
CSV_ENTRIES = 100_000
CHUNK_ENTRIES = 1_000
TOP_UPS_SHOWN = 20
EXPIRING_SOON = timedelta(days=30)


@dataclass(frozen=True, kw_only=True)
class Balance:
    balance_cents: int
    debt_cents: int


@dataclass(frozen=True, kw_only=True)
class Expiring:
    amount_cents: int
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class Credits:
    balance_cents: int
    debt_cents: int
    currency: str
    expiring: list[Expiring]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a statement; debts are told by their own entries' reasons, not by a column."""

    id: int
    kind: str
    amount_cents: int
    balance_after_cents: int
    reason: str
    reference: str
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Statement:
    results: list[Entry]
    next: str | None


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Which entries are wanted; both days belong to the range."""

    kind: str = ""
    since: date | None = None
    until: date | None = None


_COLUMNS = (
    "id",
    "kind",
    "amount_cents",
    "balance_after_cents",
    "reason",
    "reference",
    "created_at",
    "expires_at",
)


def balance(user_id: int) -> Balance:
    found = Account.objects.filter(user_id=user_id).values_list("credit_balance_cents", "debt_cents").first()
    balance_cents, debt_cents = found or (0, 0)
    return Balance(balance_cents=balance_cents, debt_cents=debt_cents)


def credits(user_id: int) -> Credits:  # noqa: A001 - the product's own word
    have = balance(user_id)
    return Credits(
        balance_cents=have.balance_cents,
        debt_cents=have.debt_cents,
        currency=settings.BILLING_CURRENCY,
        expiring=expiring(user_id, within=EXPIRING_SOON) if have.balance_cents else [],
    )


def expiring(user_id: int, *, within: timedelta) -> list[Expiring]:
    """What is left of credit that ends soon, the first to end first."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT lot.amount_cents - coalesce(used.cents, 0), lot.expires_at
            FROM billing_ledgerentry AS lot
            JOIN billing_account AS account ON account.id = lot.account_id
            LEFT JOIN LATERAL (
                SELECT sum(cents) AS cents FROM billing_ledgerallocation WHERE lot_id = lot.id
            ) AS used ON true
            WHERE account.user_id = %s AND lot.amount_cents > 0 AND lot.expires_at <= %s
              AND lot.amount_cents > coalesce(used.cents, 0)
            ORDER BY lot.expires_at, lot.id
            """,
            [user_id, timezone.now() + within],
        )
        return [Expiring(amount_cents=int(left), expires_at=ends) for left, ends in cursor.fetchall()]


def statement(
    user_id: int, *, filters: Filters | None = None, cursor: str = "", limit: int = PAGE_ENTRIES
) -> Statement:
    """Newest first; `next` continues after the last entry, and is None on the last page."""
    rows = _entries(user_id, filters or Filters())
    if cursor:
        rows = rows.filter(pk__lt=_opened(cursor))
    found = [Entry(**row) for row in rows.values(*_COLUMNS)[: limit + 1]]
    page = found[:limit]
    return Statement(results=page, next=_sealed(page[-1].id) if len(found) > limit else None)


def entry_chunks(user_id: int, filters: Filters) -> Iterator[list[Entry]]:
    """The same entries in the same order, some at a time: memory does not grow with their number."""
    rows, left, before = _entries(user_id, filters).values(*_COLUMNS), CSV_ENTRIES, None
    while left > 0:
        following = rows if before is None else rows.filter(pk__lt=before)
        chunk = [Entry(**row) for row in following[: min(left, CHUNK_ENTRIES)]]
        if not chunk:
            return
        yield chunk
        left, before = left - len(chunk), chunk[-1].id


def held_of(user_id: int) -> dict[str, object]:
    """What an account's export says of its credit (S15): the ledger, newest first."""
    return {"ledger": [asdict(entry) for chunk in entry_chunks(user_id, Filters()) for entry in chunk]}


def top_ups(user_id: int) -> list[TopUp]:
    """The last purchases, whatever became of them."""
    return list(TopUp.objects.filter(account__user=user_id).order_by("-created_at")[:TOP_UPS_SHOWN])


def top_up(user_id: int, top_up_id: UUID) -> TopUp | None:
    """The user's own; another's is as if there were none."""
    return TopUp.objects.filter(account__user=user_id, pk=top_up_id).first()


def _entries(user_id: int, filters: Filters) -> QuerySet[LedgerEntry]:
    account_id = Account.objects.filter(user_id=user_id).values_list("pk", flat=True).first()
    rows = LedgerEntry.objects.filter(account=account_id).order_by("-pk")
    if filters.kind:
        rows = rows.filter(kind=filters.kind)
    if filters.since:
        rows = rows.filter(created_at__gte=_midnight(filters.since))
    if filters.until and filters.until < date.max:  # nothing comes after that one
        rows = rows.filter(created_at__lt=_midnight(filters.until) + timedelta(days=1))
    return rows


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time.min, tzinfo=timezone.get_default_timezone())


def _sealed(entry_id: int) -> str:
    """Opaque: where a page ends is nothing to calculate with."""
    return base64.urlsafe_b64encode(f"before:{entry_id}".encode()).decode().rstrip("=")


def _opened(cursor: str) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        word, _, number = text.partition(":")
        if word != "before" or not number.isdecimal() or len(number) > 18:
            raise ValueError
    except (ValueError, binascii.Error, UnicodeDecodeError) as problem:
        raise InvalidRequest({"cursor": ["This is no cursor of ours."]}) from problem
    return int(number)
