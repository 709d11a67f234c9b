"""The account row: made at first use, the limits staff set on it, and who pays for it; the only writer of these."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from billing import policies, redis_counters, signals
from billing.models import Account
from billing.stripe import api_client, payment_api


def get_or_create_account(user_id: int) -> Account:
    """The user's account, made when missing; any number of first requests at once make one (B2.5)."""
    account = Account.objects.filter(user_id=user_id).first()
    if account is None:
        Account.objects.bulk_create([Account(user_id=user_id)], ignore_conflicts=True)
        account = Account.objects.get(user_id=user_id)
    return account


def create_missing_accounts(people: QuerySet[User]) -> None:
    """For the few of them who have used nothing yet: staff can grant them something all the same (B18.1)."""
    for user_id in people.filter(billing_account=None).values_list("pk", flat=True)[:10]:
        get_or_create_account(user_id)


def ensure_stripe_customer(account: Account, deadline: api_client.StripeDeadline) -> str:
    """The account's customer at Stripe, made when it is first needed; requests that race end with one (B15.5)."""
    if account.stripe_customer_id:
        return account.stripe_customer_id
    made = payment_api.create_customer(
        deadline, email=account.user.email, account_id=account.pk, user_id=account.user_id
    )
    Account.objects.filter(pk=account.pk, stripe_customer_id=None).update(stripe_customer_id=made.id)
    account.refresh_from_db(fields=["stripe_customer_id"])  # ours, or that of whoever was quicker
    assert account.stripe_customer_id is not None
    return account.stripe_customer_id


def clear_stripe_customer(account_id: int, customer_id: str) -> None:
    """Stripe has deleted him; the next purchase makes another."""
    Account.objects.filter(pk=account_id, stripe_customer_id=customer_id).update(stripe_customer_id=None)


def set_limit_overrides(
    account_id: int, *, daily_limit_microdollars: int | None, weekly_limit_microdollars: int | None
) -> None:
    """Limits of this account alone: None goes by tier, 0 is unlimited (B6.1)."""
    Account.objects.filter(pk=account_id).update(
        daily_limit_override_microdollars=daily_limit_microdollars,
        weekly_limit_override_microdollars=weekly_limit_microdollars,
    )
    publish_entitlement_on_commit(account_id)
    signals.notify_limit_lifted(Account.objects.values_list("user_id", flat=True).get(pk=account_id))


def publish_entitlement_on_commit(account_id: int) -> None:
    """Whoever writes a tier or an override says so here: after commit no copy in Redis or in this process is old."""
    transaction.on_commit(lambda: _publish_entitlement(account_id))


def _publish_entitlement(account_id: int) -> None:
    policies.clear_policy_cache()
    account = Account.objects.only("user_id", *policies.ENTITLEMENT_FIELDS).get(pk=account_id)
    copy = redis_counters.build_entitlement_copy(account.user_id, policies.build_entitlement(account))
    redis_counters.try_publish_copies([copy])
