"""Reset usage, bought by the user or granted by staff."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from uuid import uuid4

import structlog
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest
from django.utils import timezone

from billing import accounts, ledger, policies, redis_counters, signals
from billing.errors import CountersUnavailable, UsageResetRefused, UsageResetUnavailable
from billing.models import Account, UsageReset, UsageWindow
from billing.selectors import credit_statements, usage_status
from billing.selectors.usage_status import UsageStatus, UsageView
from billing.usage import windows

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Reset:
    success: bool
    credits_charged_cents: int
    balance_cents: int
    usage: UsageView


def buy_usage_reset(user_id: int, *, key: str | None = None) -> Reset:
    """Buy a reset of the daily limit. It fails closed: in doubt the user pays nothing."""
    account = accounts.get_or_create_account(user_id)
    if (finished := _find_finished_reset(account, key)) is not None:
        return _build_result(user_id, finished)
    _refuse_if_unavailable(user_id)
    with _hold_reset_lock(user_id):
        if (
            finished := _find_finished_reset(account, key)
        ) is not None:  # a request that held the lock before us
            return _build_result(user_id, finished)
        reset = _buy_reset(account.pk, user_id, key)
        _publish_or_undo(reset, user_id)
    signals.send_limit_lifted(user_id)
    return _build_result(user_id, reset)


def reset_usage_as_staff(user_id: int, *, weekly: bool, actor_id: int | None, reason: str) -> bool:
    """Reset the day, and the week if asked, for free. Return False if Redis will only follow within a minute."""
    account = accounts.get_or_create_account(user_id)
    with transaction.atomic():
        Account.objects.select_for_update(no_key=True).get(pk=account.pk)
        status = windows.load_usage_status(user_id, timezone.now())
        day, week = _lock_usage(status)
        UsageReset.objects.create(
            account=account,
            kind=UsageReset.Kind.STAFF,
            day=status.daily.window.starts_on,
            week=status.weekly.window.starts_on,
            daily_forgiven_microdollars=day,
            weekly_forgiven_microdollars=week if weekly else 0,
            actor_id=actor_id,
            reason=reason,
        )
        _lower_usage(status, day, week if weekly else 0)
    published = redis_counters.try_publish_copies(_build_current_copies(user_id))
    signals.send_limit_lifted(user_id)
    return published


# --- Paid resets ---


def _find_finished_reset(account: Account, key: str | None) -> UsageReset | None:
    return UsageReset.objects.filter(account=account, idempotency_key=key).first() if key else None


def _refuse_if_unavailable(user_id: int) -> None:
    code = usage_status.find_reset_refusal(
        usage_status.get_usage_status(user_id, timezone.now()), timezone.now()
    )
    if code in ("reset_not_available", "no_daily_limit"):
        raise UsageResetRefused(code)


@contextmanager
def _hold_reset_lock(user_id: int) -> Iterator[None]:
    """Hold the lock, or refuse. While Redis is away nobody is limited, so there is nothing to sell."""
    try:
        token = redis_counters.acquire_reset_lock(user_id)
    except CountersUnavailable as problem:
        raise UsageResetUnavailable from problem
    if token is None:
        raise UsageResetRefused("reset_in_progress")
    try:
        yield
    finally:
        try:
            redis_counters.release_reset_lock(user_id, token)
        except CountersUnavailable:
            log.warning("reset_lock_release_failed", user_id=user_id)


def _buy_reset(account_id: int, user_id: int, key: str | None) -> UsageReset:
    """Check, charge and reset in one transaction under the account's lock."""
    price_cents = policies.get_rules().policy.reset_cost_cents
    with transaction.atomic():
        Account.objects.select_for_update(no_key=True).get(pk=account_id)
        now = timezone.now()
        status = windows.load_usage_status(user_id, now)
        code = usage_status.find_reset_refusal(status, now)
        if code and code != "insufficient_credits":  # the ledger decides, because it also expires due credits
            raise UsageResetRefused(code)
        reset_id = uuid4()
        spent = ledger.spend(user_id, price_cents, key=f"reset:{reset_id}", reason="Reset of the daily limit")
        day, week = _lock_usage(status)
        forgiven = min(week, status.daily.limit_microdollars)
        _lower_usage(status, day, forgiven)
        return UsageReset.objects.create(
            id=reset_id,
            account_id=account_id,
            kind=UsageReset.Kind.PAID,
            day=status.daily.window.starts_on,
            week=status.weekly.window.starts_on,
            daily_forgiven_microdollars=day,
            weekly_forgiven_microdollars=forgiven,
            idempotency_key=key,
            ledger_entry=spent,
        )


def _publish_or_undo(reset: UsageReset, user_id: int) -> None:
    """Publish the reset, or undo and refund it: stale copies would keep the user locked out."""
    try:
        redis_counters.publish_copies(_build_current_copies(user_id))
    except CountersUnavailable as problem:
        _undo_reset(reset)
        raise UsageResetUnavailable(refunded=True) from problem


def _undo_reset(reset: UsageReset) -> None:
    """Refund the reset and restore the forgiven usage. Usage recorded since then stays counted."""
    assert reset.ledger_entry is not None  # enforced by a constraint for paid resets
    with transaction.atomic():
        Account.objects.select_for_update(no_key=True).get(pk=reset.account_id)
        price_cents = -reset.ledger_entry.amount_cents
        ledger.refund_spend(
            reset.ledger_entry,
            price_cents,
            key=f"reset:{reset.pk}:refund",
            reason="The reset failed",
        )
        UsageReset.objects.filter(pk=reset.pk).update(state=UsageReset.State.REFUNDED)
        for kind, starts_on, forgiven in _list_forgiven(reset):
            _change_usage(reset.account_id, kind, starts_on, forgiven)


def _list_forgiven(reset: UsageReset) -> list[tuple[str, date, int]]:
    return [
        (UsageWindow.Kind.DAY, reset.day, reset.daily_forgiven_microdollars),
        (UsageWindow.Kind.WEEK, reset.week, reset.weekly_forgiven_microdollars),
    ]


def _build_result(user_id: int, reset: UsageReset) -> Reset:
    if reset.state == UsageReset.State.REFUNDED:
        raise UsageResetUnavailable(refunded=True)
    assert reset.ledger_entry is not None
    return Reset(
        success=True,
        credits_charged_cents=-reset.ledger_entry.amount_cents,
        balance_cents=credit_statements.get_balance(user_id).balance_cents,
        usage=usage_status.get_usage(user_id),
    )


# --- Rows ---


def _lock_usage(status: UsageStatus) -> tuple[int, int]:
    """Lock both windows and return their usage. Day before week, in the same order as usage records lock them."""
    rows = UsageWindow.objects.select_for_update().filter(account=status.account_id)
    amounts = []
    for meter in status.windows:
        row = rows.filter(kind=meter.window.kind, starts_on=meter.window.starts_on).first()
        amounts.append(row.used_microdollars if row is not None else 0)
    return amounts[0], amounts[1]


def _lower_usage(status: UsageStatus, day_microdollars: int, week_microdollars: int) -> None:
    for meter, amount in zip(status.windows, (day_microdollars, week_microdollars), strict=True):
        _change_usage(status.account_id, meter.window.kind, meter.window.starts_on, -amount)


def _change_usage(account_id: int | None, kind: str, starts_on: date, microdollars: int) -> None:
    if microdollars:
        UsageWindow.objects.filter(account=account_id, kind=kind, starts_on=starts_on).update(
            used_microdollars=Greatest(0, F("used_microdollars") + microdollars),
            version=F("version") + 1,
            updated_at=timezone.now(),
        )


def _build_current_copies(user_id: int) -> list[redis_counters.RedisCopy]:
    return windows.build_copies(usage_status.get_usage_status(user_id, timezone.now()))
