"""What a subscription entitles to, by what Stripe says of it and what the clock says: pure functions (B11.3)."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from billing import accounts, notices, plans, policies, staff_alerts
from billing.errors import PaymentServiceError
from billing.models import Account, PlanChange, Subscription, TierPolicy
from billing.stripe import api_client, objects, subscription_api
from billing.subscriptions import account_tiers


def compute_grace_end(status: str, known: datetime | None, *, now: datetime, days: int) -> datetime | None:
    """Only an unpaid renewal has one; it begins when it is first seen and is never extended (B15.1)."""
    if status != "past_due":
        return None
    return known or now + timedelta(days=days)


def is_entitling(status: str, grace_until: datetime | None, *, now: datetime) -> bool:
    if status == "past_due":
        return grace_until is not None and now < grace_until
    return status in ("active", "trialing")


# MERGED subscriptions.syncing: Makes the mirror and the tier agree with Stripe, whatever happened there and in whatever order we heard of it (B14.4).

logger = logging.getLogger(__name__)

SYNC_LOCK_KEY = 0x5C  # first half of the advisory lock's key; the account is the second
ENDED_STATUS = "canceled"


def sync_subscription(
    account_id: int, *, deadline: api_client.StripeDeadline | None = None
) -> objects.StripeSubscription | None:
    """The subscription that counts, None without one.

    The lock comes first, then the fetch, then the writes: an older fetch never overwrites a newer one.
    """
    within = deadline or api_client.start_task_deadline()
    with transaction.atomic():
        _acquire_sync_lock(account_id)
        customer_id = Account.objects.values_list("stripe_customer_id", flat=True).get(pk=account_id)
        found = subscription_api.list_subscriptions(within, customer_id) if customer_id else []
        known = get_tiers_by_price()
        one = _choose_subscription(found, known, account_id, within)
        account = account_tiers.lock_account(account_id)
        if account.trial_used_at is None and had_trial(found):
            Account.objects.filter(pk=account.pk).update(trial_used_at=timezone.now())
        _apply_subscription(account, one, known)
        return one


def had_trial(found: list[objects.StripeSubscription]) -> bool:
    """One trial for ever, also one that was over before we heard of it (B15.2)."""
    return any(one.trial_end is not None for one in found)


def handle_deleted_customer(account_id: int, customer_id: str) -> None:
    """Stripe has deleted him. The lock before the row, as in every sync: two that meet must not wait in a circle."""
    with transaction.atomic():
        _acquire_sync_lock(account_id)
        accounts.clear_stripe_customer(account_id, customer_id)
        sync_subscription(account_id)


def reconcile_subscriptions() -> int:
    """Every night: all whose mirror is not ended, for Stripe stops repeating itself after some days (B14.7)."""
    if not settings.STRIPE_SECRET_KEY:
        return 0
    open_ones = list(Subscription.objects.exclude(status=ENDED_STATUS).values_list("account_id", flat=True))
    for account_id in open_ones:
        try:
            sync_subscription(account_id)
        except PaymentServiceError as problem:
            logger.warning("Account %s could not be reconciled: %s.", account_id, type(problem).__name__)
    return len(open_ones)


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
    """Until the transaction ends. Two accounts of one remainder wait for each other: harmless."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [SYNC_LOCK_KEY, account_id % 2**31])


# --- which one ------------------------------------------------------------------------------------------


def _choose_subscription(
    found: list[objects.StripeSubscription],
    known: dict[str, str],
    account_id: int,
    deadline: api_client.StripeDeadline,
) -> objects.StripeSubscription | None:
    """The highest, then the oldest of the live ones, else of those that are owed for; other live ones end (B11.2)."""

    def order(one: objects.StripeSubscription) -> tuple[int, datetime]:
        tier = known.get(one.price_id)
        return -plans.get_tier_rank(tier) if tier else 1, one.created_at

    live = sorted((one for one in found if one.is_live), key=order)
    for surplus in live[1:]:
        staff_alerts.alert_staff(
            "several_subscriptions",
            "A customer had more than one subscription.",
            account=account_id,
            kept=live[0].id,
            cancelled=surplus.id,
        )
        subscription_api.cancel_subscription(deadline, surplus.id, key=f"surplus:{surplus.id}", prorate=True)
    owing = sorted((one for one in found if one.is_owing), key=order)
    return next(iter([*live, *owing]), None)


# --- what follows from it -------------------------------------------------------------------------------


def _apply_subscription(
    account: Account, one: objects.StripeSubscription | None, known: dict[str, str]
) -> None:
    before = Subscription.objects.filter(account=account).first()
    entitled_before = before is not None and before.entitles
    if one is None:
        Subscription.objects.filter(account=account).update(
            status=ENDED_STATUS, entitles=False, grace_until=None, schedule_id="", synced_at=timezone.now()
        )
    else:
        before = _save_mirror(account, one, known.get(one.price_id), before)
        _finish_plan_changes(account, one, known.get(one.price_id))
    _apply_tier(account, one, before, entitled_before=entitled_before)


def _save_mirror(
    account: Account, one: objects.StripeSubscription, tier: str | None, before: Subscription | None
) -> Subscription:
    now = timezone.now()
    same = before if before is not None and before.stripe_id == one.id else None
    days = policies.get_rules().policy.grace_days
    grace = compute_grace_end(one.status, same.grace_until if same else None, now=now, days=days)
    mirror, _ = Subscription.objects.update_or_create(
        account=account,
        defaults={
            "stripe_id": one.id,
            "status": one.status,
            "price_id": one.price_id,
            "tier": tier,
            "item_id": one.item_id,
            "period_start": one.period_start,
            "period_end": one.period_end,
            "cancel_at_period_end": one.cancel_at_period_end,
            "schedule_id": one.schedule_id,
            "trial_end": one.trial_end,
            "grace_until": grace,
            "entitles": is_entitling(one.status, grace, now=now),
            "synced_at": now,
        },
    )
    return mirror


def _apply_tier(
    account: Account,
    one: objects.StripeSubscription | None,
    mirror: Subscription | None,
    *,
    entitled_before: bool,
) -> None:
    """The tier: by the price while it entitles, the fallback once it stops; who has none keeps what he has (B11.3)."""
    if account.tier == "ENTERPRISE":
        if one is not None:
            logger.warning("Account %s is ENTERPRISE and has the subscription %s.", account.pk, one.id)
        return
    if one is not None and mirror is not None and mirror.entitles:
        if mirror.tier is None:
            staff_alerts.alert_staff(
                "unknown_price",
                "No tier has the price of a subscription; the tier stays as it is.",
                account=account.pk,
                subscription=one.id,
                price=one.price_id,
            )
        else:
            account_tiers.write_tier(account, mirror.tier)
    elif entitled_before:
        account_tiers.write_tier(account, account_tiers.get_fallback_tier(account))
        if one is not None and mirror is not None and mirror.status == "past_due":
            post_lapsed_notice(account, mirror)


def _finish_plan_changes(account: Account, one: objects.StripeSubscription, tier: str | None) -> None:
    """A checkout that led here, and an upgrade that was paid or given up, are over."""
    open_ones = PlanChange.objects.filter(account=account, state=PlanChange.State.STARTED)
    if one.is_live:
        open_ones.filter(kind=PlanChange.Kind.CHECKOUT).update(
            state=PlanChange.State.DONE, subscription_id=one.id
        )
    if one.pending_update is None:
        upgrades = open_ones.filter(kind=PlanChange.Kind.UPGRADE, subscription_id=one.id)
        upgrades.filter(to_tier=tier or "").update(state=PlanChange.State.DONE)
        upgrades.update(state=PlanChange.State.FAILED, error="It was not paid.")
