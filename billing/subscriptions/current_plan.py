"""Load an account's current plan from its rows and, where they may be late, from Stripe."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from billing.models import Account, Subscription, TierPolicy
from billing.selectors import plan_status
from billing.stripe import api_client, objects, subscription_api
from billing.subscriptions.plan_decisions import HEALTH_BY_STATUS, PlanSituation, TierOffer
from billing.subscriptions.stripe_sync import get_tiers_by_price, had_trial, sync_subscription


@dataclass(frozen=True, kw_only=True)
class CurrentPlan:
    """`subscription` is the live or owing one at Stripe; None also if Stripe cannot be asked."""

    account: Account
    mirror: Subscription | None
    subscription: objects.StripeSubscription | None
    all_subscriptions: list[objects.StripeSubscription] | None = (
        None  # all of the customer's subscriptions, if they were listed
    )

    def get_situation(self) -> PlanSituation:
        if self.subscription is not None:
            status, tier = self.subscription.status, get_tiers_by_price().get(self.subscription.price_id)
        elif self.mirror is not None and not settings.STRIPE_SECRET_KEY:
            status, tier = self.mirror.status, self.mirror.tier  # the last state we know
        else:
            status, tier = "", None
        return PlanSituation(
            tier=self.account.tier,
            granted_tier=self.account.granted_tier,
            health=HEALTH_BY_STATUS.get(status, "none"),
            subscribed_tier=tier,
        )

    @property
    def is_waiting_for_stripe(self) -> bool:
        """Return True if a change is pending that only Stripe could undo, and there is no key to ask it with."""
        mirror = self.mirror
        return (
            self.subscription is None
            and mirror is not None
            and mirror.status in HEALTH_BY_STATUS
            and (bool(mirror.schedule_id) or mirror.cancel_at_period_end)
        )


def load_current_plan(account_id: int, deadline: api_client.StripeDeadline) -> CurrentPlan:
    """Load the plan, syncing with Stripe if a webhook is late or a payment lapsed. Without a key Stripe is not asked."""
    account, mirror = _load_rows(account_id)
    if not account.stripe_customer_id or not settings.STRIPE_SECRET_KEY:
        return CurrentPlan(account=account, mirror=mirror, subscription=None)
    if account.tier == "FREE":
        subscriptions = subscription_api.list_subscriptions(deadline, account.stripe_customer_id)
        missed_trial = account.trial_used_at is None and had_trial(subscriptions)
        if not missed_trial and not any(
            subscription.is_live or subscription.is_owing for subscription in subscriptions
        ):
            return CurrentPlan(
                account=account, mirror=mirror, subscription=None, all_subscriptions=subscriptions
            )
    elif mirror is None or mirror.status not in HEALTH_BY_STATUS:
        return CurrentPlan(account=account, mirror=mirror, subscription=None)
    else:
        subscription = subscription_api.get_subscription(deadline, mirror.stripe_id)
        if subscription is not None and (subscription.is_live or subscription.is_owing):
            return CurrentPlan(account=account, mirror=mirror, subscription=subscription)
    subscription = sync_subscription(account_id, deadline=deadline)
    account, mirror = _load_rows(account_id)
    return CurrentPlan(account=account, mirror=mirror, subscription=subscription)


def get_tier_offer(policy: TierPolicy | None) -> TierOffer:
    """Return whether the tier can be bought now."""
    sold = policy is not None and policy.selectable and bool(policy.stripe_price_id)
    return TierOffer(payments_on=plan_status.are_payments_enabled(), for_sale=sold)


def _load_rows(account_id: int) -> tuple[Account, Subscription | None]:
    account = Account.objects.get(pk=account_id)
    return account, Subscription.objects.filter(account=account_id).first()
