"""The account row: made at first use, and the limits staff set on it; the only writer of both."""

from __future__ import annotations

from django.db import transaction

from billing import counters, lifting, policies
from billing.models import Account


def get_or_create(user_id: int) -> Account:
    """The user's account, made when missing; any number of first requests at once make one (B2.5)."""
    account = Account.objects.filter(user_id=user_id).first()
    if account is None:
        Account.objects.bulk_create([Account(user_id=user_id)], ignore_conflicts=True)
        account = Account.objects.get(user_id=user_id)
    return account


def set_overrides(
    account_id: int, *, daily_limit_microdollars: int | None, weekly_limit_microdollars: int | None
) -> None:
    """Limits of this account alone: None goes by tier, 0 is unlimited (B6.1)."""
    Account.objects.filter(pk=account_id).update(
        daily_limit_override_microdollars=daily_limit_microdollars,
        weekly_limit_override_microdollars=weekly_limit_microdollars,
    )
    entitlement_changed(account_id)
    lifting.limit_lifted(Account.objects.values_list("user_id", flat=True).get(pk=account_id))


def entitlement_changed(account_id: int) -> None:
    """Whoever writes a tier or an override says so here: after commit no copy in Redis or in this process is old."""
    transaction.on_commit(lambda: _tell(account_id))


def _tell(account_id: int) -> None:
    policies.forget()
    account = Account.objects.only("user_id", *policies.ENTITLEMENT).get(pk=account_id)
    copy = counters.entitlement_copy(account.user_id, policies.entitlement_of(account))
    counters.publish_or_count([copy])
