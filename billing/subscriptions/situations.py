"""Where an account stands at this moment, by its rows and, where they may be late, by Stripe (B11.4, step 4)."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from billing import gateway, queries
from billing.models import Account, Subscription, TierPolicy
from billing.subscriptions.decisions import HEALTHS, Offer, Situation
from billing.subscriptions.syncing import had_trial, sync, tiers_by_price


@dataclass(frozen=True, kw_only=True)
class Present:
    """`one` is the live or owing subscription as Stripe has it; None also when Stripe cannot be asked."""

    account: Account
    mirror: Subscription | None
    one: gateway.Subscription | None
    found: list[gateway.Subscription] | None = None  # all of the customer's, if they were listed

    def situation(self) -> Situation:
        if self.one is not None:
            status, tier = self.one.status, tiers_by_price().get(self.one.price_id)
        elif self.mirror is not None and not settings.STRIPE_SECRET_KEY:
            status, tier = self.mirror.status, self.mirror.tier  # as far as we were told
        else:
            status, tier = "", None
        return Situation(
            tier=self.account.tier,
            granted_tier=self.account.granted_tier,
            health=HEALTHS.get(status, "none"),
            subscribed_tier=tier,
        )

    @property
    def waits_for_stripe(self) -> bool:
        """Something is to come that only Stripe could take back, and there is no key to ask it with."""
        mirror = self.mirror
        return (
            self.one is None
            and mirror is not None
            and mirror.status in HEALTHS
            and (bool(mirror.schedule_id) or mirror.cancel_at_period_end)
        )


def look(account_id: int, deadline: gateway.Deadline) -> Present:
    """A late webhook and a lapsed payer are found here; without a key nobody is asked."""
    account, mirror = _rows(account_id)
    if not account.stripe_customer_id or not settings.STRIPE_SECRET_KEY:
        return Present(account=account, mirror=mirror, one=None)
    if account.tier == "FREE":
        found = gateway.list_subscriptions(deadline, account.stripe_customer_id)
        unheard = account.trial_used_at is None and had_trial(found)
        if not unheard and not any(one.is_live or one.is_owing for one in found):
            return Present(account=account, mirror=mirror, one=None, found=found)
    elif mirror is None or mirror.status not in HEALTHS:
        return Present(account=account, mirror=mirror, one=None)
    else:
        one = gateway.get_subscription(deadline, mirror.stripe_id)
        if one is not None and (one.is_live or one.is_owing):
            return Present(account=account, mirror=mirror, one=one)
    one = sync(account_id, deadline=deadline)
    account, mirror = _rows(account_id)
    return Present(account=account, mirror=mirror, one=one)


def offer_of(policy: TierPolicy | None) -> Offer:
    """Reads the switch of staff; only asked when money must decide."""
    sold = policy is not None and policy.selectable and bool(policy.stripe_price_id)
    return Offer(payments_on=queries.payments_on(), for_sale=sold)


def _rows(account_id: int) -> tuple[Account, Subscription | None]:
    account = Account.objects.get(pk=account_id)
    return account, Subscription.objects.filter(account=account_id).first()
