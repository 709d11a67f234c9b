"""Create accounts and write their Stripe customer and the limit overrides that staff set."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from billing import policies, redis_counters, signals
from billing.models import Account
from billing.stripe import api_client, payment_api


def get_or_create_account(user_id: int) -> Account:
    """Return the user's account, creating it if missing. Concurrent first requests create only one."""
    account = Account.objects.filter(user_id=user_id).first()
    if account is None:
        Account.objects.bulk_create([Account(user_id=user_id)], ignore_conflicts=True)
        account = Account.objects.get(user_id=user_id)
    return account


def create_missing_accounts(users: QuerySet[User]) -> None:
    """Create accounts for up to ten of these users, so that staff can find and credit them before their first use."""
    for user_id in users.filter(billing_account=None).values_list("pk", flat=True)[:10]:
        get_or_create_account(user_id)


def ensure_stripe_customer(account: Account, deadline: api_client.StripeDeadline) -> str:
    """Return the account's Stripe customer id, creating the customer on first use. Concurrent requests agree on one."""
    if account.stripe_customer_id:
        return account.stripe_customer_id
    customer = payment_api.create_customer(
        deadline, email=account.user.email, account_id=account.pk, user_id=account.user_id
    )
    Account.objects.filter(pk=account.pk, stripe_customer_id=None).update(stripe_customer_id=customer.id)
    account.refresh_from_db(fields=["stripe_customer_id"])  # a concurrent request may have won
    assert account.stripe_customer_id is not None
    return account.stripe_customer_id


def clear_stripe_customer(account_id: int, customer_id: str) -> None:
    Account.objects.filter(pk=account_id, stripe_customer_id=customer_id).update(stripe_customer_id=None)


def set_limit_overrides(
    account_id: int, *, daily_limit_microdollars: int | None, weekly_limit_microdollars: int | None
) -> None:
    """Set this account's own limits. None falls back to the tier's limit, 0 means unlimited."""
    Account.objects.filter(pk=account_id).update(
        daily_limit_override_microdollars=daily_limit_microdollars,
        weekly_limit_override_microdollars=weekly_limit_microdollars,
    )
    publish_entitlement_on_commit(account_id)
    signals.send_limit_lifted(Account.objects.values_list("user_id", flat=True).get(pk=account_id))


def publish_entitlement_on_commit(account_id: int) -> None:
    """Refresh the copies in Redis and in this process after commit. Call it after every write of a tier or override."""
    transaction.on_commit(lambda: _publish_entitlement(account_id))


def _publish_entitlement(account_id: int) -> None:
    policies.clear_policy_cache()
    account = Account.objects.only("user_id", *policies.ENTITLEMENT_FIELDS).get(pk=account_id)
    copy = redis_counters.build_entitlement_copy(account.user_id, policies.build_entitlement(account))
    redis_counters.try_publish_copies([copy])
