"""Sync the subscription mirror and the tier with Stripe, whatever happened there and in whatever order events arrive."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from billing import accounts, metrics, notices, plans, policies
from billing.errors import PaymentServiceError
from billing.models import Account, PlanChange, Subscription, TierPolicy
from billing.stripe import api_client, objects, subscription_api
from billing.subscriptions import account_tiers


def compute_grace_end(status: str, known: datetime | None, *, now: datetime, days: int) -> datetime | None:
    """Return when the grace period ends. Only a past-due subscription has one, and it is never extended."""
    if status != "past_due":
        return None
    return known or now + timedelta(days=days)


def is_entitling(status: str, grace_until: datetime | None, *, now: datetime) -> bool:
    if status == "past_due":
        return grace_until is not None and now < grace_until
    return status in ("active", "trialing")


log = structlog.get_logger(__name__)

SYNC_LOCK_KEY = 0x5C  # first half of the advisory lock's key; the account is the second
ENDED_STATUS = "canceled"


def sync_subscription(
    account_id: int, *, deadline: api_client.StripeDeadline | None = None
) -> objects.StripeSubscription | None:
    """Fetch the customer's subscriptions and apply the one that counts; return it, or None.

    The lock is taken before the fetch, so that an older fetch never overwrites a newer one.
    """
    within = deadline or api_client.start_task_deadline()
    with transaction.atomic():
        _acquire_sync_lock(account_id)
        customer_id = Account.objects.values_list("stripe_customer_id", flat=True).get(pk=account_id)
        subscriptions = subscription_api.list_subscriptions(within, customer_id) if customer_id else []
        tiers_by_price = get_tiers_by_price()
        subscription = _choose_subscription(subscriptions, tiers_by_price, account_id, within)
        account = account_tiers.lock_account(account_id)
        if account.trial_used_at is None and had_trial(subscriptions):
            Account.objects.filter(pk=account.pk).update(trial_used_at=timezone.now())
        _apply_subscription(account, subscription, tiers_by_price)
        return subscription


def had_trial(subscriptions: list[objects.StripeSubscription]) -> bool:
    """Return True if any subscription had a trial, including one that ended before its event arrived."""
    return any(subscription.trial_end is not None for subscription in subscriptions)


def handle_deleted_customer(account_id: int, customer_id: str) -> None:
    """Forget a customer deleted at Stripe. The sync lock is taken before the row lock, as in every sync, to avoid deadlocks."""
    with transaction.atomic():
        _acquire_sync_lock(account_id)
        accounts.clear_stripe_customer(account_id, customer_id)
        sync_subscription(account_id)


def reconcile_subscriptions() -> int:
    """Sync every subscription that has not ended, because Stripe stops repeating webhooks after some days."""
    if not settings.STRIPE_SECRET_KEY:
        return 0
    open_account_ids = list(
        Subscription.objects.exclude(status=ENDED_STATUS).values_list("account_id", flat=True)
    )
    for account_id in open_account_ids:
        try:
            sync_subscription(account_id)
        except PaymentServiceError as problem:
            log.warning("subscription_reconcile_failed", account_id=account_id, error=type(problem).__name__)
    return len(open_account_ids)


def post_lapsed_notice(account: Account, mirror: Subscription) -> None:
    notices.post_notice(
        account.user_id,
        "plan_lapsed",
        dedupe_key=f"lapsed:{mirror.stripe_id}:{mirror.grace_until:%Y%m%d}",
        data={},
        mail=True,
    )


def get_tiers_by_price() -> dict[str, str]:
    sold = TierPolicy.objects.exclude(stripe_price_id=None)
    return {price: tier for price, tier in sold.values_list("stripe_price_id", "tier") if price}


def _acquire_sync_lock(account_id: int) -> None:
    """Lock until the transaction ends. Accounts with the same remainder share a lock, which is harmless."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [SYNC_LOCK_KEY, account_id % 2**31])


# --- Choosing the subscription ---


def _choose_subscription(
    subscriptions: list[objects.StripeSubscription],
    tiers_by_price: dict[str, str],
    account_id: int,
    deadline: api_client.StripeDeadline,
) -> objects.StripeSubscription | None:
    """Prefer live over owing ones, then the highest tier, then the oldest. Surplus live ones are cancelled."""

    def order(subscription: objects.StripeSubscription) -> tuple[int, datetime]:
        tier = tiers_by_price.get(subscription.price_id)
        return -plans.get_tier_rank(tier) if tier else 1, subscription.created_at

    live = sorted((subscription for subscription in subscriptions if subscription.is_live), key=order)
    for surplus in live[1:]:
        metrics.alert_staff(
            "several_subscriptions",
            "A customer had more than one subscription.",
            account=account_id,
            kept=live[0].id,
            cancelled=surplus.id,
        )
        subscription_api.cancel_subscription(deadline, surplus.id, key=f"surplus:{surplus.id}", prorate=True)
    owing = sorted((subscription for subscription in subscriptions if subscription.is_owing), key=order)
    return next(iter([*live, *owing]), None)


# --- Applying it ---


def _apply_subscription(
    account: Account, subscription: objects.StripeSubscription | None, tiers_by_price: dict[str, str]
) -> None:
    before = Subscription.objects.filter(account=account).first()
    entitled_before = before is not None and before.entitles
    if subscription is None:
        Subscription.objects.filter(account=account).update(
            status=ENDED_STATUS, entitles=False, grace_until=None, schedule_id="", synced_at=timezone.now()
        )
    else:
        before = _save_mirror(account, subscription, tiers_by_price.get(subscription.price_id), before)
        _finish_plan_changes(account, subscription, tiers_by_price.get(subscription.price_id))
    _apply_tier(account, subscription, before, entitled_before=entitled_before)


def _save_mirror(
    account: Account, subscription: objects.StripeSubscription, tier: str | None, before: Subscription | None
) -> Subscription:
    now = timezone.now()
    same = before if before is not None and before.stripe_id == subscription.id else None
    days = policies.get_rules().policy.grace_days
    grace = compute_grace_end(subscription.status, same.grace_until if same else None, now=now, days=days)
    mirror, _ = Subscription.objects.update_or_create(
        account=account,
        defaults={
            "stripe_id": subscription.id,
            "status": subscription.status,
            "price_id": subscription.price_id,
            "tier": tier,
            "item_id": subscription.item_id,
            "period_start": subscription.period_start,
            "period_end": subscription.period_end,
            "cancel_at_period_end": subscription.cancel_at_period_end,
            "schedule_id": subscription.schedule_id,
            "trial_end": subscription.trial_end,
            "grace_until": grace,
            "entitles": is_entitling(subscription.status, grace, now=now),
            "synced_at": now,
        },
    )
    return mirror


def _apply_tier(
    account: Account,
    subscription: objects.StripeSubscription | None,
    mirror: Subscription | None,
    *,
    entitled_before: bool,
) -> None:
    """Use the price's tier while it entitles, and the fallback once it stops. Without a subscription the tier stays."""
    if account.tier == "ENTERPRISE":
        if subscription is not None:
            log.warning(
                "enterprise_account_has_subscription", account_id=account.pk, subscription_id=subscription.id
            )
        return
    if subscription is not None and mirror is not None and mirror.entitles:
        if mirror.tier is None:
            metrics.alert_staff(
                "unknown_price",
                "No tier has the price of this subscription. The account keeps its tier.",
                account=account.pk,
                subscription=subscription.id,
                price=subscription.price_id,
            )
        else:
            account_tiers.write_tier(account, mirror.tier)
    elif entitled_before:
        account_tiers.write_tier(account, account_tiers.get_fallback_tier(account))
        if subscription is not None and mirror is not None and mirror.status == "past_due":
            post_lapsed_notice(account, mirror)


def _finish_plan_changes(
    account: Account, subscription: objects.StripeSubscription, tier: str | None
) -> None:
    """Finish checkouts that led to this subscription, and upgrades that were paid or abandoned."""
    open_changes = PlanChange.objects.filter(account=account, state=PlanChange.State.STARTED)
    if subscription.is_live:
        open_changes.filter(kind=PlanChange.Kind.CHECKOUT).update(
            state=PlanChange.State.DONE, subscription_id=subscription.id
        )
    if subscription.pending_update is None:
        upgrades = open_changes.filter(kind=PlanChange.Kind.UPGRADE, subscription_id=subscription.id)
        upgrades.filter(to_tier=tier or "").update(state=PlanChange.State.DONE)
        upgrades.update(state=PlanChange.State.FAILED, error="It was not paid.")
