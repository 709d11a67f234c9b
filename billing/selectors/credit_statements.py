"""Read a user's credits: balance, expiring credits, statement pages and top-ups."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date, datetime, time, timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from billing.errors import InvalidRequest
from billing.models import Account, LedgerEntry, TopUp

STATEMENT_PAGE_SIZE = 50
MAX_STATEMENT_PAGE_SIZE = 200
MAX_CSV_ENTRIES = 100_000
CSV_CHUNK_SIZE = 1_000
MAX_SHOWN_TOP_UPS = 20
EXPIRING_SOON_PERIOD = timedelta(days=30)


@dataclass(frozen=True, kw_only=True)
class CreditBalance:
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
    """One line of a statement. Debt appears in the reason of its own entries, not in a column."""

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
class StatementFilters:
    """Filters for the entries to include; both dates are inclusive."""

    kind: str = ""
    since: date | None = None
    until: date | None = None


_ENTRY_COLUMNS = (
    "id",
    "kind",
    "amount_cents",
    "balance_after_cents",
    "reason",
    "reference",
    "created_at",
    "expires_at",
)


def get_balance(user_id: int) -> CreditBalance:
    found = Account.objects.filter(user_id=user_id).values_list("credit_balance_cents", "debt_cents").first()
    balance_cents, debt_cents = found or (0, 0)
    return CreditBalance(balance_cents=balance_cents, debt_cents=debt_cents)


def get_credits(user_id: int) -> Credits:
    balance = get_balance(user_id)
    return Credits(
        balance_cents=balance.balance_cents,
        debt_cents=balance.debt_cents,
        currency=settings.BILLING_CURRENCY,
        expiring=list_expiring_credits(user_id, within=EXPIRING_SOON_PERIOD) if balance.balance_cents else [],
    )


def list_expiring_credits(user_id: int, *, within: timedelta) -> list[Expiring]:
    """List what is left of credits that expire within the period, soonest first."""
    lots = LedgerEntry.objects.open_lots().filter(
        account__user=user_id, expires_at__lte=timezone.now() + within
    )
    rows = lots.order_by("expires_at", "pk").values_list("left_cents", "expires_at")
    return [Expiring(amount_cents=left, expires_at=ends) for left, ends in rows if ends is not None]


def get_statement(
    user_id: int,
    *,
    filters: StatementFilters | None = None,
    cursor: str = "",
    limit: int = STATEMENT_PAGE_SIZE,
) -> Statement:
    """Return one page, newest first. `next` is the cursor of the next page, or None on the last."""
    rows = _filter_entries(user_id, filters or StatementFilters())
    if cursor:
        rows = rows.filter(pk__lt=_decode_cursor(cursor))
    found = [Entry(**row) for row in rows.values(*_ENTRY_COLUMNS)[: limit + 1]]
    page = found[:limit]
    return Statement(results=page, next=_encode_cursor(page[-1].id) if len(found) > limit else None)


def iterate_statement(user_id: int, filters: StatementFilters) -> Iterator[list[Entry]]:
    """Yield the entries in chunks, so that memory does not grow with their number."""
    rows, left, before = _filter_entries(user_id, filters).values(*_ENTRY_COLUMNS), MAX_CSV_ENTRIES, None
    while left > 0:
        following = rows if before is None else rows.filter(pk__lt=before)
        chunk = [Entry(**row) for row in following[: min(left, CSV_CHUNK_SIZE)]]
        if not chunk:
            return
        yield chunk
        left, before = left - len(chunk), chunk[-1].id


def export_credits(user_id: int) -> dict[str, object]:
    """Return the ledger for the user's data export, newest first."""
    return {
        "ledger": [
            asdict(entry) for chunk in iterate_statement(user_id, StatementFilters()) for entry in chunk
        ]
    }


def list_top_ups(user_id: int) -> list[TopUp]:
    return list(TopUp.objects.filter(account__user=user_id).order_by("-created_at")[:MAX_SHOWN_TOP_UPS])


def get_top_up(user_id: int, top_up_id: UUID) -> TopUp | None:
    """Return the user's own top-up, or None."""
    return TopUp.objects.filter(account__user=user_id, pk=top_up_id).first()


def _filter_entries(user_id: int, filters: StatementFilters) -> QuerySet[LedgerEntry]:
    account_id = Account.objects.filter(user_id=user_id).values_list("pk", flat=True).first()
    rows = LedgerEntry.objects.filter(account=account_id).order_by("-pk")
    if filters.kind:
        rows = rows.filter(kind=filters.kind)
    if filters.since:
        rows = rows.filter(created_at__gte=_get_midnight(filters.since))
    if filters.until and filters.until < date.max:  # adding a day to date.max would overflow
        rows = rows.filter(created_at__lt=_get_midnight(filters.until) + timedelta(days=1))
    return rows


def _get_midnight(day: date) -> datetime:
    return datetime.combine(day, time.min, tzinfo=timezone.get_default_timezone())


def _encode_cursor(entry_id: int) -> str:
    return base64.urlsafe_b64encode(f"before:{entry_id}".encode()).decode().rstrip("=")


def _decode_cursor(cursor: str) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        word, _, number = text.partition(":")
        if word != "before" or not number.isdecimal() or len(number) > 18:
            raise ValueError
    except (ValueError, binascii.Error, UnicodeDecodeError) as problem:
        raise InvalidRequest({"cursor": ["This cursor is not valid."]}) from problem
    return int(number)
