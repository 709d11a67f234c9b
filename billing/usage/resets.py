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

from billing import accounts, counters, ledger, lifting, policies, queries
from billing.errors import CountersDown, ResetRefused, ResetUnavailable
from billing.models import Account, UsageReset, UsageWindow
from billing.queries import Standing, UsageView
from billing.usage import windows

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Reset:
    """The answer to who bought one (B16.2)."""

    success: bool
    credits_charged_cents: int
    balance_cents: int
    usage: UsageView


def reset(user_id: int, *, key: str | None = None) -> Reset:
    """Buy the day's limit anew (B8.2). It fails closed: no doubt costs the user anything."""
    account = accounts.get_or_create(user_id)
    if (finished := _finished(account, key)) is not None:
        return _answer(user_id, finished)
    _refuse_beforehand(user_id)
    with _alone(user_id):
        if (finished := _finished(account, key)) is not None:  # by whoever had the lock before us
            return _answer(user_id, finished)
        made = _buy(account.pk, user_id, key)
        _publish_or_undo(made, user_id)
    lifting.limit_lifted(user_id)
    return _answer(user_id, made)


def staff_reset(user_id: int, *, weekly: bool, actor_id: int | None, reason: str) -> bool:
    """The day to zero, the week only if asked; free. False: Redis will learn of it within a minute (B8.4)."""
    account = accounts.get_or_create(user_id)
    with transaction.atomic():
        Account.objects.select_for_update(no_key=True).get(pk=account.pk)
        stands = windows.load(user_id, timezone.now())
        day, week = _locked(stands)
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
        _lower(stands, day, week if weekly else 0)
    told = counters.publish_or_count(_copies(user_id))
    lifting.limit_lifted(user_id)
    return told


# --- the steps of a paid one ----------------------------------------------------------------------------


def _finished(account: Account, key: str | None) -> UsageReset | None:
    return UsageReset.objects.filter(account=account, idempotency_key=key).first() if key else None


def _refuse_beforehand(user_id: int) -> None:
    code = queries.reset_refusal(queries.standing(user_id, timezone.now()), timezone.now())
    if code in ("reset_not_available", "no_daily_limit"):
        raise ResetRefused(code)


@contextmanager
def _alone(user_id: int) -> Iterator[None]:
    """While Redis is away nobody is limited, so there is nothing to sell."""
    try:
        token = counters.lock_reset(user_id)
    except CountersDown as problem:
        raise ResetUnavailable from problem
    if token is None:
        raise ResetRefused("reset_in_progress")
    try:
        yield
    finally:
        try:
            counters.unlock_reset(user_id, token)
        except CountersDown:
            logger.warning("The lock of a reset could not be released, it expires by itself.")


def _buy(account_id: int, user_id: int, key: str | None) -> UsageReset:
    """One transaction under the account's lock: judged by the rows, paid, forgiven, written down."""
    price_cents = policies.rules().policy.reset_cost_cents
    with transaction.atomic():
        Account.objects.select_for_update(no_key=True).get(pk=account_id)
        now = timezone.now()
        stands = windows.load(user_id, now)
        code = queries.reset_refusal(stands, now)
        if code and code != "insufficient_credits":  # the ledger knows what expires at this moment
            raise ResetRefused(code)
        reset_id = uuid4()
        spent = ledger.spend(user_id, price_cents, key=f"reset:{reset_id}", reason="Reset of the daily limit")
        day, week = _locked(stands)
        forgiven = min(week, stands.daily.limit_microdollars)
        _lower(stands, day, forgiven)
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
        counters.publish(_copies(user_id))
    except CountersDown as problem:
        _undo(made)
        raise ResetUnavailable(refunded=True) from problem


def _undo(made: UsageReset) -> None:
    """What was recorded in between stays counted."""
    assert made.ledger_entry is not None  # the database says so of paid ones
    with transaction.atomic():
        Account.objects.select_for_update(no_key=True).get(pk=made.account_id)
        price_cents = -made.ledger_entry.amount_cents
        ledger.refund(
            made.ledger_entry,
            price_cents,
            key=f"reset:{made.pk}:refund",
            reason="The reset could not be made",
        )
        UsageReset.objects.filter(pk=made.pk).update(state=UsageReset.State.REFUNDED)
        for kind, starts_on, forgiven in _forgiven(made):
            _move(made.account_id, kind, starts_on, forgiven)


def _forgiven(made: UsageReset) -> list[tuple[str, date, int]]:
    return [
        (UsageWindow.Kind.DAY, made.day, made.daily_forgiven_microdollars),
        (UsageWindow.Kind.WEEK, made.week, made.weekly_forgiven_microdollars),
    ]


def _answer(user_id: int, made: UsageReset) -> Reset:
    if made.state == UsageReset.State.REFUNDED:
        raise ResetUnavailable(refunded=True)
    assert made.ledger_entry is not None
    return Reset(
        success=True,
        credits_charged_cents=-made.ledger_entry.amount_cents,
        balance_cents=queries.balance(user_id).balance_cents,
        usage=queries.usage(user_id),
    )


# --- rows -----------------------------------------------------------------------------------------------


def _locked(stands: Standing) -> tuple[int, int]:
    """Use of day and week as it stands now: recordings wait until we are done. Day before week, as they do."""
    rows = UsageWindow.objects.select_for_update().filter(account=stands.account_id)
    amounts = []
    for meter in stands.meters:
        row = rows.filter(kind=meter.window.kind, starts_on=meter.window.starts_on).first()
        amounts.append(row.used_microdollars if row is not None else 0)
    return amounts[0], amounts[1]


def _lower(stands: Standing, day_microdollars: int, week_microdollars: int) -> None:
    for meter, amount in zip(stands.meters, (day_microdollars, week_microdollars), strict=True):
        _move(stands.account_id, meter.window.kind, meter.window.starts_on, -amount)


def _move(account_id: int | None, kind: str, starts_on: date, microdollars: int) -> None:
    if microdollars:
        UsageWindow.objects.filter(account=account_id, kind=kind, starts_on=starts_on).update(
            used_microdollars=Greatest(0, F("used_microdollars") + microdollars),
            version=F("version") + 1,
            updated_at=timezone.now(),
        )


def _copies(user_id: int) -> list[counters.Copy]:
    return windows.copies(queries.standing(user_id, timezone.now()))
