"""Post every movement of prepaid credits; the only writer of LedgerEntry, LedgerAllocation and the balances.

Every write is one transaction under the account's row lock: due lots expire, the entry and its allocations are added,
and the balance moves. A repeated key returns its first entry; with other content it raises IdempotencyConflict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog
from celery import current_app
from django.db import Error as AnyDatabaseError
from django.db import IntegrityError, transaction
from django.db.models import F, Sum
from django.utils import timezone
from kombu.exceptions import OperationalError

from billing import accounts, metrics
from billing.errors import BillingError, IdempotencyConflict, InsufficientCredits, RefundTooLarge
from billing.models import Account, AutoTopUp, LedgerAllocation, LedgerEntry

log = structlog.get_logger(__name__)
EntryKind = LedgerEntry.Kind
REFUND_MIN_LIFETIME = timedelta(days=30)  # refunded credits stay usable at least this long
NO_EXPIRY = datetime.max.replace(tzinfo=UTC)
AUTO_TOP_UP_TASK = "billing.tasks.auto_top_up"
EXPIRY_BATCH_ACCOUNTS = 500  # per run of the task


@dataclass(frozen=True, kw_only=True)
class LedgerPosting:
    """A requested entry. `cents` is the requested amount; a reversal may move part of it to debt."""

    kind: LedgerEntry.Kind
    cents: int
    reason: str = ""
    reference: str = ""
    expires_at: datetime | None = None
    actor_id: int | None = None


# --- Operations ---


def grant_credits(
    user_id: int,
    cents: int,
    *,
    key: str,
    reason: str = "",
    expires_at: datetime | None = None,
    actor_id: int | None = None,
) -> LedgerEntry:
    """Grant free credits. They may expire and never pay off debt."""
    posting = LedgerPosting(
        kind=EntryKind.GRANT, cents=cents, reason=reason, expires_at=expires_at, actor_id=actor_id
    )
    return _post_entry(_get_account_id(user_id), key, posting)


def post_top_up(user_id: int, cents: int, *, key: str, reason: str = "", reference: str = "") -> LedgerEntry:
    """Add bought credits. Debt is paid from them at once by a second entry."""
    posting = LedgerPosting(kind=EntryKind.TOP_UP, cents=cents, reason=reason, reference=reference)
    return _post_entry(_get_account_id(user_id), key, posting)


def spend(user_id: int, cents: int, *, key: str, reason: str = "", reference: str = "") -> LedgerEntry:
    return _post_entry(
        _get_account_id(user_id),
        key,
        LedgerPosting(kind=EntryKind.SPEND, cents=cents, reason=reason, reference=reference),
    )


def charge_after_delivery(
    user_id: int, cents: int, *, key: str, reason: str = "", reference: str = ""
) -> bool:
    """Charge for something already delivered. Return False, and log and count a leak, if the charge fails."""
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
    log.error("billing_leak", leak_type=leak_type, account_id=account_id, cents=cents, key=key)
    return False


def _find_account_id(user_id: int) -> int | None:
    """Return the account's id, or None if the database is what failed: the leak must be logged either way."""
    try:
        return Account.objects.filter(user_id=user_id).values_list("pk", flat=True).first()
    except AnyDatabaseError:
        return None


def refund_spend(spent: LedgerEntry, cents: int, *, key: str, reason: str = "") -> LedgerEntry:
    """Give back part or all of a SPEND. The refunds of one spend never exceed it."""
    posting = LedgerPosting(kind=EntryKind.REFUND, cents=cents, reason=reason, reference=str(spent.pk))
    return _post_entry(spent.account_id, key, posting)


def reverse_payment(
    user_id: int, cents: int, *, key: str, reason: str = "", reference: str = ""
) -> LedgerEntry:
    """Take back the credits of a reversed payment. What the balance lacks becomes debt."""
    posting = LedgerPosting(kind=EntryKind.REVERSAL, cents=cents, reason=reason, reference=reference)
    return _post_entry(_get_account_id(user_id), key, posting)


def reinstate_payment(
    user_id: int, cents: int, *, key: str, reason: str = "", reference: str = ""
) -> LedgerEntry:
    """Undo a reversal: pay off debt first, then add credits."""
    posting = LedgerPosting(kind=EntryKind.REINSTATEMENT, cents=cents, reason=reason, reference=reference)
    return _post_entry(_get_account_id(user_id), key, posting)


def expire_due_credits() -> int:
    """Expire the remainder of due lots and return how many accounts had some."""
    due_lots = LedgerEntry.objects.open_lots().filter(expires_at__lte=timezone.now())
    due_account_ids = list(due_lots.values_list("account_id", flat=True).distinct()[:EXPIRY_BATCH_ACCOUNTS])
    for account_id in due_account_ids:
        with transaction.atomic():
            AccountLedger(account_id)
    return len(due_account_ids)


def _get_account_id(user_id: int) -> int:
    return accounts.get_or_create_account(user_id).pk


# --- Writing ---


def _post_entry(account_id: int, key: str, posting: LedgerPosting) -> LedgerEntry:
    if posting.cents <= 0:
        raise ValueError("an entry must move at least one cent")
    try:
        with transaction.atomic():
            book = AccountLedger(account_id)
            return book.find_posted(key, posting) or book.post(key, posting)
    except IntegrityError as problem:  # a concurrent commit, or the balance constraint
        if "a_balance_is_never_negative" in str(problem):
            raise InsufficientCredits from problem
        raise IdempotencyConflict(f"the key {key} was used for something else") from problem


@dataclass(frozen=True, kw_only=True)
class CreditLot:
    id: int
    left_cents: int
    expires_at: datetime | None


class AccountLedger:
    """One account's ledger, locked until the transaction ends. Opening it expires the lots that are due."""

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

    def find_posted(self, key: str, posting: LedgerPosting) -> LedgerEntry | None:
        entry = LedgerEntry.objects.filter(idempotency_key=key).first()
        if entry is not None and (entry.account_id, _describe_entry(entry)) != (
            self.account.pk,
            _normalize_posting(posting),
        ):
            raise IdempotencyConflict(f"the key {key} was used for something else")
        return entry

    def post(self, key: str, posting: LedgerPosting) -> LedgerEntry:
        balance_cents, debt_cents = self.account.credit_balance_cents, self.account.debt_cents
        match posting.kind:
            case EntryKind.SPEND:
                return self._add_entry(key, posting, -posting.cents)
            case EntryKind.REVERSAL:
                taken_cents = min(balance_cents, posting.cents)
                return self._add_entry(key, posting, -taken_cents, posting.cents - taken_cents)
            case EntryKind.REINSTATEMENT:
                paid_cents = min(debt_cents, posting.cents)
                return self._add_entry(key, posting, posting.cents - paid_cents, -paid_cents)
            case EntryKind.REFUND:
                return self._add_entry(key, self._prepare_refund(posting), posting.cents)
            case _:
                entry = self._add_entry(key, posting, posting.cents)
                if posting.kind == EntryKind.TOP_UP and debt_cents:
                    paid_cents = min(debt_cents, posting.cents)
                    paying = LedgerPosting(
                        kind=EntryKind.REVERSAL,
                        cents=paid_cents,
                        reason="Paid debt",
                        reference=posting.reference,
                    )
                    self._add_entry(f"{key}:debt", paying, -paid_cents, -paid_cents)
                return entry

    def _prepare_refund(self, posting: LedgerPosting) -> LedgerPosting:
        """Let a refund live as long as the longest-lived credits the spend used, and at least a month."""
        spent = LedgerEntry.objects.get(pk=posting.reference, account=self.account, kind=EntryKind.SPEND)
        refunded = LedgerEntry.objects.filter(
            account=self.account, kind=EntryKind.REFUND, reference=posting.reference
        ).aggregate(cents=Sum("amount_cents", default=0))
        if refunded["cents"] + posting.cents > -spent.amount_cents:
            raise RefundTooLarge
        expiries = [use.lot.expires_at for use in spent.allocations.select_related("lot")]
        finite_expiries = [expiry for expiry in expiries if expiry is not None]
        if len(finite_expiries) < len(expiries):
            return posting
        return replace(posting, expires_at=max(*finite_expiries, timezone.now() + REFUND_MIN_LIFETIME))

    def _add_entry(
        self, key: str, posting: LedgerPosting, amount_cents: int, debt_delta_cents: int = 0
    ) -> LedgerEntry:
        if self.account.credit_balance_cents + amount_cents < 0:
            raise InsufficientCredits
        self.account.credit_balance_cents += amount_cents
        self.account.debt_cents += debt_delta_cents
        entry = LedgerEntry.objects.create(
            account=self.account,
            kind=posting.kind,
            amount_cents=amount_cents,
            debt_delta_cents=debt_delta_cents,
            balance_after_cents=self.account.credit_balance_cents,
            idempotency_key=key,
            reason=posting.reason,
            reference=posting.reference,
            expires_at=posting.expires_at,
            actor_id=posting.actor_id,
        )
        self._allocate_lots(entry)
        Account.objects.filter(pk=self.account.pk).update(
            credit_balance_cents=F("credit_balance_cents") + amount_cents,
            debt_cents=F("debt_cents") + debt_delta_cents,
        )
        transaction.on_commit(metrics.ledger_entries.labels(posting.kind).inc)
        if posting.kind == EntryKind.SPEND:
            self._request_top_up_if_low()
        return entry

    def _request_top_up_if_low(self) -> None:
        """Send the task by name, because top_ups imports this module. If the broker loses it, the next spend asks again."""
        left_cents = self.account.credit_balance_cents
        low = AutoTopUp.objects.enabled().filter(account=self.account, threshold_cents__gt=left_cents)
        if low.exists():
            transaction.on_commit(partial(_enqueue_auto_top_up, self.account.pk))

    def _allocate_lots(self, entry: LedgerEntry) -> None:
        """Add a credit as a new lot, or take a debit from the lots that expire first, then the oldest."""
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
        log.warning("auto_top_up_not_enqueued", account_id=account_id, error="broker_unavailable")


def _load_open_lots(account_id: int) -> list[CreditLot]:
    open_lots = LedgerEntry.objects.open_lots().filter(account=account_id)
    rows = open_lots.values_list("pk", "left_cents", "expires_at")
    lots = [CreditLot(id=key, left_cents=left, expires_at=ends) for key, left, ends in rows]
    return sorted(lots, key=_get_lot_order)


def _get_lot_order(lot: CreditLot) -> tuple[datetime, int]:
    return lot.expires_at or NO_EXPIRY, lot.id


def _describe_entry(entry: LedgerEntry) -> LedgerPosting:
    """Return the posting that an entry was created from."""
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


def _normalize_posting(posting: LedgerPosting) -> LedgerPosting:
    """Drop what is not content: the actor, and the expiry of a refund, which depends on when it was made."""
    expires_at = posting.expires_at if posting.kind == EntryKind.GRANT else None
    return replace(posting, expires_at=expires_at, actor_id=None)
