"""The one place where an account's tier is written, so that nobody forgets to tell of it."""

from __future__ import annotations

from billing import accounts, lifting, plans
from billing.models import Account


def locked(account_id: int) -> Account:
    """For the rest of the transaction; recordings, which only refer to it, do not wait."""
    return Account.objects.select_for_update(no_key=True).get(pk=account_id)


def write(account: Account, tier: str) -> None:
    """Of a locked account. Copies are told after commit, and whoever was blocked may go on if it was raised (B2.4)."""
    if tier == account.tier:
        return
    Account.objects.filter(pk=account.pk).update(tier=tier)
    accounts.entitlement_changed(account.pk)
    if plans.rank(tier) > plans.rank(account.tier):
        lifting.limit_lifted(account.user_id)
    account.tier = tier


def fallback(account: Account) -> str:
    """What is left when a subscription stops entitling (B11.3)."""
    return account.granted_tier or "FREE"
