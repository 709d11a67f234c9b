"""The account row: made at first use, the limits staff set on it, and who pays for it; the only writer of these."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from billing import counters, gateway, lifting, policies
from billing.models import Account


def get_or_create(user_id: int) -> Account:
    """The user's account, made when missing; any number of first requests at once make one (B2.5)."""
    account = Account.objects.filter(user_id=user_id).first()
    if account is None:
        Account.objects.bulk_create([Account(user_id=user_id)], ignore_conflicts=True)
        account = Account.objects.get(user_id=user_id)
    return account


def open_missing(people: QuerySet[User]) -> None:
    """For the few of them who have used nothing yet: staff can grant them something all the same (B18.1)."""
    for user_id in people.filter(billing_account=None).values_list("pk", flat=True)[:10]:
        get_or_create(user_id)


def ensure_customer(account: Account, deadline: gateway.Deadline) -> str:
    """The account's customer at Stripe, made when it is first needed; requests that race end with one (B15.5)."""
    if account.stripe_customer_id:
        return account.stripe_customer_id
    made = gateway.create_customer(
        deadline, email=account.user.email, account_id=account.pk, user_id=account.user_id
    )
    Account.objects.filter(pk=account.pk, stripe_customer_id=None).update(stripe_customer_id=made.id)
    account.refresh_from_db(fields=["stripe_customer_id"])  # ours, or that of whoever was quicker
    assert account.stripe_customer_id is not None
    return account.stripe_customer_id


def forget_customer(account_id: int, customer_id: str) -> None:
    """Stripe has deleted him; the next purchase makes another."""
    Account.objects.filter(pk=account_id, stripe_customer_id=customer_id).update(stripe_customer_id=None)


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
