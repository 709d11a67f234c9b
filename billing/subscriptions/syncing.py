"""Makes the mirror and the tier agree with Stripe, whatever happened there and in whatever order we heard of it (B14.4)."""

from __future__ import annotations

import logging
from datetime import datetime

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from billing import accounts, alerts, gateway, notices, plans, policies
from billing.errors import GatewayError
from billing.models import Account, PlanChange, Subscription, TierPolicy
from billing.subscriptions import tiers
from billing.subscriptions.entitlements import entitles, grace_of

logger = logging.getLogger(__name__)

SYNC_LOCK = 0x5C  # first half of the advisory lock's key; the account is the second
ENDED = "canceled"


def sync(account_id: int, *, deadline: gateway.Deadline | None = None) -> gateway.Subscription | None:
    """The subscription that counts, None without one.

    The lock comes first, then the fetch, then the writes: an older fetch never overwrites a newer one.
    """
    within = deadline or gateway.in_task()
    with transaction.atomic():
        _alone(account_id)
        customer_id = Account.objects.values_list("stripe_customer_id", flat=True).get(pk=account_id)
        found = gateway.list_subscriptions(within, customer_id) if customer_id else []
        known = tiers_by_price()
        one = _the_one(found, known, account_id, within)
        account = tiers.locked(account_id)
        if account.trial_used_at is None and had_trial(found):
            Account.objects.filter(pk=account.pk).update(trial_used_at=timezone.now())
        _follow(account, one, known)
        return one


def had_trial(found: list[gateway.Subscription]) -> bool:
    """One trial for ever, also one that was over before we heard of it (B15.2)."""
    return any(one.trial_end is not None for one in found)


def customer_gone(account_id: int, customer_id: str) -> None:
    """Stripe has deleted him. The lock before the row, as in every sync: two that meet must not wait in a circle."""
    with transaction.atomic():
        _alone(account_id)
        accounts.forget_customer(account_id, customer_id)
        sync(account_id)


def reconcile() -> int:
    """Every night: all whose mirror is not ended, for Stripe stops repeating itself after some days (B14.7)."""
    if not settings.STRIPE_SECRET_KEY:
        return 0
    open_ones = list(Subscription.objects.exclude(status=ENDED).values_list("account_id", flat=True))
    for account_id in open_ones:
        try:
            sync(account_id)
        except GatewayError as problem:
            logger.warning("Account %s could not be reconciled: %s.", account_id, type(problem).__name__)
    return len(open_ones)


def tell_lapsed(account: Account, mirror: Subscription) -> None:
    notices.post(
        account.user_id,
        "plan_lapsed",
        dedupe_key=f"lapsed:{mirror.stripe_id}:{mirror.grace_until:%Y%m%d}",
        data={},
        mail=True,
    )


def tiers_by_price() -> dict[str, str]:
    sold = TierPolicy.objects.exclude(stripe_price_id=None)
    return {price: tier for price, tier in sold.values_list("stripe_price_id", "tier") if price}


def _alone(account_id: int) -> None:
    """Until the transaction ends. Two accounts of one remainder wait for each other: harmless."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [SYNC_LOCK, account_id % 2**31])


# --- which one ------------------------------------------------------------------------------------------


def _the_one(
    found: list[gateway.Subscription], known: dict[str, str], account_id: int, deadline: gateway.Deadline
) -> gateway.Subscription | None:
    """The highest, then the oldest of the live ones, else of those that are owed for; other live ones end (B11.2)."""

    def order(one: gateway.Subscription) -> tuple[int, datetime]:
        tier = known.get(one.price_id)
        return -plans.rank(tier) if tier else 1, one.created_at

    live = sorted((one for one in found if one.is_live), key=order)
    for surplus in live[1:]:
        alerts.call_staff(
            "several_subscriptions",
            "A customer had more than one subscription.",
            account=account_id,
            kept=live[0].id,
            cancelled=surplus.id,
        )
        gateway.cancel_subscription(deadline, surplus.id, key=f"surplus:{surplus.id}", prorate=True)
    owing = sorted((one for one in found if one.is_owing), key=order)
    return next(iter([*live, *owing]), None)


# --- what follows from it -------------------------------------------------------------------------------


def _follow(account: Account, one: gateway.Subscription | None, known: dict[str, str]) -> None:
    before = Subscription.objects.filter(account=account).first()
    entitled_before = before is not None and before.entitles
    if one is None:
        Subscription.objects.filter(account=account).update(
            status=ENDED, entitles=False, grace_until=None, schedule_id="", synced_at=timezone.now()
        )
    else:
        before = _mirrored(account, one, known.get(one.price_id), before)
        _finish_changes(account, one, known.get(one.price_id))
    _apply(account, one, before, entitled_before=entitled_before)


def _mirrored(
    account: Account, one: gateway.Subscription, tier: str | None, before: Subscription | None
) -> Subscription:
    now = timezone.now()
    same = before if before is not None and before.stripe_id == one.id else None
    days = policies.rules().policy.grace_days
    grace = grace_of(one.status, same.grace_until if same else None, now=now, days=days)
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
            "entitles": entitles(one.status, grace, now=now),
            "synced_at": now,
        },
    )
    return mirror


def _apply(
    account: Account, one: gateway.Subscription | None, mirror: Subscription | None, *, entitled_before: bool
) -> None:
    """The tier: by the price while it entitles, the fallback once it stops; who has none keeps what he has (B11.3)."""
    if account.tier == "ENTERPRISE":
        if one is not None:
            logger.warning("Account %s is ENTERPRISE and has the subscription %s.", account.pk, one.id)
        return
    if one is not None and mirror is not None and mirror.entitles:
        if mirror.tier is None:
            alerts.call_staff(
                "unknown_price",
                "No tier has the price of a subscription; the tier stays as it is.",
                account=account.pk,
                subscription=one.id,
                price=one.price_id,
            )
        else:
            tiers.write(account, mirror.tier)
    elif entitled_before:
        tiers.write(account, tiers.fallback(account))
        if one is not None and mirror is not None and mirror.status == "past_due":
            tell_lapsed(account, mirror)


def _finish_changes(account: Account, one: gateway.Subscription, tier: str | None) -> None:
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
