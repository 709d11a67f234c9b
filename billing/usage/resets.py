"""Use that is forgiven: bought by its user, or given by staff (B8)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from uuid import uuid4

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

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Reset:
    """The answer to who bought one (B16.2)."""

    success: bool
    credits_charged_cents: int
    balance_cents: int
    usage: UsageView


def buy_usage_reset(user_id: int, *, key: str | None = None) -> Reset:
    """Buy the day's limit anew (B8.2). It fails closed: no doubt costs the user anything."""
    account = accounts.get_or_create_account(user_id)
    if (finished := _find_finished_reset(account, key)) is not None:
        return _build_result(user_id, finished)
    _refuse_if_unavailable(user_id)
    with _hold_reset_lock(user_id):
        if (finished := _find_finished_reset(account, key)) is not None:  # by whoever had the lock before us
            return _build_result(user_id, finished)
        made = _buy_reset(account.pk, user_id, key)
        _publish_or_undo(made, user_id)
    signals.notify_limit_lifted(user_id)
    return _build_result(user_id, made)


def reset_usage_as_staff(user_id: int, *, weekly: bool, actor_id: int | None, reason: str) -> bool:
    """The day to zero, the week only if asked; free. False: Redis will learn of it within a minute (B8.4)."""
    account = accounts.get_or_create_account(user_id)
    with transaction.atomic():
        Account.objects.select_for_update(no_key=True).get(pk=account.pk)
        stands = windows.load_usage_status(user_id, timezone.now())
        day, week = _lock_usage(stands)
        UsageReset.objects.create(
            account=account,
            kind=UsageReset.Kind.STAFF,
            day=stands.daily.window.starts_on,
            week=stands.weekly.window.starts_on,
            daily_forgiven_microdollars=day,
            weekly_forgiven_microdollars=week if weekly else 0,
            actor_id=actor_id,
            reason=reason,
        )
        _lower_usage(stands, day, week if weekly else 0)
    told = redis_counters.try_publish_copies(_build_current_copies(user_id))
    signals.notify_limit_lifted(user_id)
    return told


# --- the steps of a paid one ----------------------------------------------------------------------------


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
    """While Redis is away nobody is limited, so there is nothing to sell."""
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
            logger.warning("The lock of a reset could not be released, it expires by itself.")


def _buy_reset(account_id: int, user_id: int, key: str | None) -> UsageReset:
    """One transaction under the account's lock: judged by the rows, paid, forgiven, written down."""
    price_cents = policies.get_rules().policy.reset_cost_cents
    with transaction.atomic():
        Account.objects.select_for_update(no_key=True).get(pk=account_id)
        now = timezone.now()
        stands = windows.load_usage_status(user_id, now)
        code = usage_status.find_reset_refusal(stands, now)
        if code and code != "insufficient_credits":  # the ledger knows what expires at this moment
            raise UsageResetRefused(code)
        reset_id = uuid4()
        spent = ledger.spend(user_id, price_cents, key=f"reset:{reset_id}", reason="Reset of the daily limit")
        day, week = _lock_usage(stands)
        forgiven = min(week, stands.daily.limit_microdollars)
        _lower_usage(stands, day, forgiven)
        return UsageReset.objects.create(
            id=reset_id,
            account_id=account_id,
            kind=UsageReset.Kind.PAID,
            day=stands.daily.window.starts_on,
            week=stands.weekly.window.starts_on,
            daily_forgiven_microdollars=day,
            weekly_forgiven_microdollars=forgiven,
            idempotency_key=key,
            ledger_entry=spent,
        )


def _publish_or_undo(made: UsageReset, user_id: int) -> None:
    """Copies that still say "used up" would keep the user out of what he paid for: then he gets his money back."""
    try:
        redis_counters.publish_copies(_build_current_copies(user_id))
    except CountersUnavailable as problem:
        _undo_reset(made)
        raise UsageResetUnavailable(refunded=True) from problem


def _undo_reset(made: UsageReset) -> None:
    """What was recorded in between stays counted."""
    assert made.ledger_entry is not None  # the database says so of paid ones
    with transaction.atomic():
        Account.objects.select_for_update(no_key=True).get(pk=made.account_id)
        price_cents = -made.ledger_entry.amount_cents
        ledger.refund_spend(
            made.ledger_entry,
            price_cents,
            key=f"reset:{made.pk}:refund",
            reason="The reset could not be made",
        )
        UsageReset.objects.filter(pk=made.pk).update(state=UsageReset.State.REFUNDED)
        for kind, starts_on, forgiven in _list_forgiven(made):
            _change_usage(made.account_id, kind, starts_on, forgiven)


def _list_forgiven(made: UsageReset) -> list[tuple[str, date, int]]:
    return [
        (UsageWindow.Kind.DAY, made.day, made.daily_forgiven_microdollars),
        (UsageWindow.Kind.WEEK, made.week, made.weekly_forgiven_microdollars),
    ]


def _build_result(user_id: int, made: UsageReset) -> Reset:
    if made.state == UsageReset.State.REFUNDED:
        raise UsageResetUnavailable(refunded=True)
    assert made.ledger_entry is not None
    return Reset(
        success=True,
        credits_charged_cents=-made.ledger_entry.amount_cents,
        balance_cents=credit_statements.get_balance(user_id).balance_cents,
        usage=usage_status.get_usage(user_id),
    )


# --- rows -----------------------------------------------------------------------------------------------


def _lock_usage(stands: UsageStatus) -> tuple[int, int]:
    """Use of day and week as it stands now: recordings wait until we are done. Day before week, as they do."""
    rows = UsageWindow.objects.select_for_update().filter(account=stands.account_id)
    amounts = []
    for meter in stands.windows:
        row = rows.filter(kind=meter.window.kind, starts_on=meter.window.starts_on).first()
        amounts.append(row.used_microdollars if row is not None else 0)
    return amounts[0], amounts[1]


def _lower_usage(stands: UsageStatus, day_microdollars: int, week_microdollars: int) -> None:
    for meter, amount in zip(stands.windows, (day_microdollars, week_microdollars), strict=True):
        _change_usage(stands.account_id, meter.window.kind, meter.window.starts_on, -amount)


def _change_usage(account_id: int | None, kind: str, starts_on: date, microdollars: int) -> None:
    if microdollars:
        UsageWindow.objects.filter(account=account_id, kind=kind, starts_on=starts_on).update(
            used_microdollars=Greatest(0, F("used_microdollars") + microdollars),
            version=F("version") + 1,
            updated_at=timezone.now(),
        )


def _build_current_copies(user_id: int) -> list[redis_counters.RedisCopy]:
    return windows.build_copies(usage_status.get_usage_status(user_id, timezone.now()))
