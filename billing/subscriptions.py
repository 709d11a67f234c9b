"""Plans of accounts: the only writer of Subscription, PlanChange and an account's tier."""

from __future__ import annotations

from django.db import transaction

from billing import accounts, lifting, plans
from billing.models import Account, PlanChange


def set_tier(account_id: int, tier: str, *, actor_id: int | None, reason: str) -> None:
    """By staff (B15.4): it holds until a live subscription says otherwise. FREE takes a grant back."""
    with transaction.atomic():
        account = Account.objects.select_for_update(no_key=True).get(pk=account_id)
        PlanChange.objects.create(
            account=account,
            kind=PlanChange.Kind.GRANT,
            state=PlanChange.State.DONE,
            from_tier=account.tier,
            to_tier=tier,
            actor_id=actor_id,
            reason=reason,
        )
        raised = plans.TIERS.index(tier) > plans.TIERS.index(account.tier)
        Account.objects.filter(pk=account_id).update(tier=tier, granted_tier=None if tier == "FREE" else tier)
        accounts.entitlement_changed(account_id)
        if raised:
            lifting.limit_lifted(account.user_id)
