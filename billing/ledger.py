"""Prepaid credits: the only writer of LedgerEntry, LedgerAllocation and the two balance columns (B9).

Every write is one transaction under the account's row lock: lots whose time is over expire, the entry and what it uses
up are added, the balance moves. A key that comes again returns its first entry; with other content it is a Conflict.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from celery import current_app
from django.db import Error as AnyDatabaseError
from django.db import IntegrityError, connection, transaction
from django.db.models import F, Sum
from django.utils import timezone
from kombu.exceptions import OperationalError

from billing import accounts, metrics
from billing.errors import BillingError, IdempotencyConflict, InsufficientCredits, RefundTooLarge
from billing.models import Account, AutoTopUp, LedgerAllocation, LedgerEntry

logger = logging.getLogger(__name__)
EntryKind = LedgerEntry.Kind
REFUND_MIN_LIFETIME = timedelta(days=30)  # what comes back can be used at least this long (B9.6)
NO_EXPIRY = datetime.max.replace(tzinfo=UTC)
AUTO_TOP_UP_TASK = "billing.tasks.auto_top_up"
EXPIRY_BATCH_ACCOUNTS = 500  # in one run of the task; the rest in the next


@dataclass(frozen=True, kw_only=True)
class LedgerPosting:
    """What an entry is to say; `cents` is what is asked for, whatever it turns out to move."""

    kind: LedgerEntry.Kind
    cents: int
    reason: str = ""
    reference: str = ""
    expires_at: datetime | None = None
    actor_id: int | None = None


# --- what is done with credits --------------------------------------------------------------------------


def grant_credits(
    user_id: int,
    cents: int,
    *,
    key: str,
    reason: str = "",
    expires_at: datetime | None = None,
    actor_id: int | None = None,
) -> LedgerEntry:
    """A gift; it may expire, and pays no debt."""
    wanted = LedgerPosting(
        kind=EntryKind.GRANT, cents=cents, reason=reason, expires_at=expires_at, actor_id=actor_id
    )
    return _post_entry(_get_account_id(user_id), key, wanted)


def post_top_up(user_id: int, cents: int, *, key: str, reason: str = "", reference: str = "") -> LedgerEntry:
    """Bought credit; what is owed is paid from it at once, by an entry of its own (B9.7)."""
    wanted = LedgerPosting(kind=EntryKind.TOP_UP, cents=cents, reason=reason, reference=reference)
    return _post_entry(_get_account_id(user_id), key, wanted)


def spend(user_id: int, cents: int, *, key: str, reason: str = "", reference: str = "") -> LedgerEntry:
    """All or nothing."""
    return _post_entry(
        _get_account_id(user_id),
        key,
        LedgerPosting(kind=EntryKind.SPEND, cents=cents, reason=reason, reference=reference),
    )


def charge_after_delivery(
    user_id: int, cents: int, *, key: str, reason: str = "", reference: str = ""
) -> bool:
    """For what the user has already: he keeps it if this fails, and we write down what leaked (B9.8)."""
    try:
        spend(user_id, cents, key=key, reason=reason, reference=reference)
    except InsufficientCredits:
        return _record_leak("insufficient_balance", user_id, cents, key)
    except (BillingError, AnyDatabaseError):
        return _record_leak("unexpected_error", user_id, cents, key)
    return True


def _record_leak(leak_type: str, user_id: int, cents: int, key: str) -> bool:
    metrics.billing_leaks.labels(leak_type).inc()
    account_id = _find_account_id(user_id)
    logger.error("billing_leak leak_type=%s account=%s cents=%s key=%s", leak_type, account_id, cents, key)
    return False


def _find_account_id(user_id: int) -> int | None:
    """What failed may be the database itself; the line in the log must be written all the same."""
    try:
        return Account.objects.filter(user_id=user_id).values_list("pk", flat=True).first()
    except AnyDatabaseError:
        return None


def refund_spend(spent: LedgerEntry, cents: int, *, key: str, reason: str = "") -> LedgerEntry:
    """Gives back of a SPEND; all refunds of one never exceed it (B9.6)."""
    wanted = LedgerPosting(kind=EntryKind.REFUND, cents=cents, reason=reason, reference=str(spent.pk))
    return _post_entry(spent.account_id, key, wanted)


def reverse_payment(
    user_id: int, cents: int, *, key: str, reason: str = "", reference: str = ""
) -> LedgerEntry:
    """A payment was taken back; what is not there any more is owed (B9.7)."""
    wanted = LedgerPosting(kind=EntryKind.REVERSAL, cents=cents, reason=reason, reference=reference)
    return _post_entry(_get_account_id(user_id), key, wanted)


def reinstate_payment(
    user_id: int, cents: int, *, key: str, reason: str = "", reference: str = ""
) -> LedgerEntry:
    """A reversal was undone: debt first, then credit."""
    wanted = LedgerPosting(kind=EntryKind.REINSTATEMENT, cents=cents, reason=reason, reference=reference)
    return _post_entry(_get_account_id(user_id), key, wanted)


def expire_due_credits() -> int:
    """Lots whose time is over and of which something is left; how many accounts had some (B9.5)."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT DISTINCT lot.account_id FROM billing_ledgerentry AS lot
            LEFT JOIN LATERAL (
                SELECT sum(cents) AS cents FROM billing_ledgerallocation WHERE lot_id = lot.id
            ) AS used ON true
            WHERE lot.expires_at <= %s AND lot.amount_cents > coalesce(used.cents, 0)
            LIMIT %s
            """,
            [timezone.now(), EXPIRY_BATCH_ACCOUNTS],
        )
        due = [row[0] for row in cursor.fetchall()]
    for account_id in due:
        with transaction.atomic():
            AccountLedger(account_id)
    return len(due)


def _get_account_id(user_id: int) -> int:
    return accounts.get_or_create_account(user_id).pk


# --- one write ------------------------------------------------------------------------------------------


def _post_entry(account_id: int, key: str, wanted: LedgerPosting) -> LedgerEntry:
    if wanted.cents <= 0:
        raise ValueError("an entry moves at least one cent")
    try:
        with transaction.atomic():
            book = AccountLedger(account_id)
            return book.find_posted(key, wanted) or book.post(key, wanted)
    except (
        IntegrityError
    ) as problem:  # what others committed at the same moment, and the last word on balances
        if "a_balance_is_never_negative" in str(problem):
            raise InsufficientCredits from problem
        raise IdempotencyConflict(f"the key {key} was used for something else") from problem


@dataclass(frozen=True, kw_only=True)
class CreditLot:
    """A credit of which something is left."""

    id: int
    left_cents: int
    expires_at: datetime | None


class AccountLedger:
    """One account's ledger, locked until the transaction ends; what is over has expired."""

    def __init__(self, account_id: int) -> None:
        self.account = Account.objects.select_for_update(no_key=True).get(pk=account_id)
        self._lots = _load_open_lots(account_id)
        now = timezone.now()
        for lot in [lot for lot in self._lots if lot.expires_at and lot.expires_at <= now]:
            self._add_entry(
                f"expiry:{lot.id}",
                LedgerPosting(kind=EntryKind.EXPIRY, cents=lot.left_cents),
                -lot.left_cents,
            )

    def find_posted(self, key: str, wanted: LedgerPosting) -> LedgerEntry | None:
        """The entry that this key made before."""
        entry = LedgerEntry.objects.filter(idempotency_key=key).first()
        if entry is not None and (entry.account_id, _describe_entry(entry)) != (
            self.account.pk,
            _normalize_posting(wanted),
        ):
            raise IdempotencyConflict(f"the key {key} was used for something else")
        return entry

    def post(self, key: str, wanted: LedgerPosting) -> LedgerEntry:
        balance_cents, debt_cents = self.account.credit_balance_cents, self.account.debt_cents
        match wanted.kind:
            case EntryKind.SPEND:
                return self._add_entry(key, wanted, -wanted.cents)
            case EntryKind.REVERSAL:
                taken_cents = min(balance_cents, wanted.cents)
                return self._add_entry(key, wanted, -taken_cents, wanted.cents - taken_cents)
            case EntryKind.REINSTATEMENT:
                paid_cents = min(debt_cents, wanted.cents)
                return self._add_entry(key, wanted, wanted.cents - paid_cents, -paid_cents)
            case EntryKind.REFUND:
                return self._add_entry(key, self._prepare_refund(wanted), wanted.cents)
            case _:
                entry = self._add_entry(key, wanted, wanted.cents)
                if wanted.kind == EntryKind.TOP_UP and debt_cents:
                    paid_cents = min(debt_cents, wanted.cents)
                    paying = LedgerPosting(
                        kind=EntryKind.REVERSAL,
                        cents=paid_cents,
                        reason="Paid debt",
                        reference=wanted.reference,
                    )
                    self._add_entry(f"{key}:debt", paying, -paid_cents, -paid_cents)
                return entry

    def _prepare_refund(self, wanted: LedgerPosting) -> LedgerPosting:
        """As long-lived as the best of what the spend had used up, and at least a month (B9.6)."""
        spent = LedgerEntry.objects.get(pk=wanted.reference, account=self.account, kind=EntryKind.SPEND)
        given = LedgerEntry.objects.filter(
            account=self.account, kind=EntryKind.REFUND, reference=wanted.reference
        ).aggregate(cents=Sum("amount_cents", default=0))
        if given["cents"] + wanted.cents > -spent.amount_cents:
            raise RefundTooLarge
        expiries = [use.lot.expires_at for use in spent.allocations.select_related("lot")]
        known = [expiry for expiry in expiries if expiry is not None]
        if len(known) < len(expiries):
            return wanted
        return replace(wanted, expires_at=max(*known, timezone.now() + REFUND_MIN_LIFETIME))

    def _add_entry(
        self, key: str, wanted: LedgerPosting, amount_cents: int, debt_delta_cents: int = 0
    ) -> LedgerEntry:
        if self.account.credit_balance_cents + amount_cents < 0:
            raise InsufficientCredits
        self.account.credit_balance_cents += amount_cents
        self.account.debt_cents += debt_delta_cents
        entry = LedgerEntry.objects.create(
            account=self.account,
            kind=wanted.kind,
            amount_cents=amount_cents,
            debt_delta_cents=debt_delta_cents,
            balance_after_cents=self.account.credit_balance_cents,
            idempotency_key=key,
            reason=wanted.reason,
            reference=wanted.reference,
            expires_at=wanted.expires_at,
            actor_id=wanted.actor_id,
        )
        self._allocate_lots(entry)
        Account.objects.filter(pk=self.account.pk).update(
            credit_balance_cents=F("credit_balance_cents") + amount_cents,
            debt_cents=F("debt_cents") + debt_delta_cents,
        )
        transaction.on_commit(metrics.ledger_entries.labels(wanted.kind).inc)
        if wanted.kind == EntryKind.SPEND:
            self._request_top_up_if_low()
        return entry

    def _request_top_up_if_low(self) -> None:
        """By the task's name: who buys more stands above (B10.4). What a dead broker loses, the next spend finds."""
        left_cents = self.account.credit_balance_cents
        low = AutoTopUp.objects.filter(account=self.account, enabled=True, threshold_cents__gt=left_cents)
        if low.exists():
            transaction.on_commit(partial(_enqueue_auto_top_up, self.account.pk))

    def _allocate_lots(self, entry: LedgerEntry) -> None:
        """A debit uses up what expires first, then the oldest; a credit is a lot more (B9.4)."""
        if entry.amount_cents > 0:
            lot = CreditLot(id=entry.pk, left_cents=entry.amount_cents, expires_at=entry.expires_at)
            self._lots = sorted([*self._lots, lot], key=_get_lot_order)
            return
        missing_cents, left = -entry.amount_cents, []
        for lot in self._lots:
            taken_cents = min(lot.left_cents, missing_cents)
            missing_cents -= taken_cents
            if taken_cents:
                LedgerAllocation.objects.create(entry=entry, lot_id=lot.id, cents=taken_cents)
            if lot.left_cents > taken_cents:
                left.append(replace(lot, left_cents=lot.left_cents - taken_cents))
        self._lots = left


def _enqueue_auto_top_up(account_id: int) -> None:
    try:
        current_app.send_task(AUTO_TOP_UP_TASK, args=[account_id], retry=False)
    except OperationalError:
        logger.warning("Account %s runs low, and there is no broker.", account_id)


def _load_open_lots(account_id: int) -> list[CreditLot]:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT lot.id, (lot.amount_cents - coalesce(used.cents, 0))::bigint, lot.expires_at
            FROM billing_ledgerentry AS lot
            LEFT JOIN LATERAL (
                SELECT sum(cents) AS cents FROM billing_ledgerallocation WHERE lot_id = lot.id
            ) AS used ON true
            WHERE lot.account_id = %s AND lot.amount_cents > 0 AND lot.amount_cents > coalesce(used.cents, 0)
            """,
            [account_id],
        )
        lots = [CreditLot(id=key, left_cents=left, expires_at=ends) for key, left, ends in cursor.fetchall()]
    return sorted(lots, key=_get_lot_order)


def _get_lot_order(lot: CreditLot) -> tuple[datetime, int]:
    """The order of use."""
    return lot.expires_at or NO_EXPIRY, lot.id


def _describe_entry(entry: LedgerEntry) -> LedgerPosting:
    """What an entry was asked to be."""
    kind = EntryKind(entry.kind)
    moved_cents = abs(entry.amount_cents) + abs(entry.debt_delta_cents)
    return _normalize_posting(
        LedgerPosting(
            kind=kind,
            cents=moved_cents,
            reason=entry.reason,
            reference=entry.reference,
            expires_at=entry.expires_at,
        )
    )


def _normalize_posting(wanted: LedgerPosting) -> LedgerPosting:
    """Who asked is not content; a refund's end follows from the moment it was made."""
    expires_at = wanted.expires_at if wanted.kind == EntryKind.GRANT else None
    return replace(wanted, expires_at=expires_at, actor_id=None)
