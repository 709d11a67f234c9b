"""Write an account's tier, by subscription or by staff grant, so that every change is published."""

from __future__ import annotations

import structlog
from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

from billing import accounts, plans, signals
from billing.errors import PaymentsDisabled, PaymentServiceError
from billing.models import Account, PlanChange, TierPolicy
from billing.stripe import api_client, subscription_api


def lock_account(account_id: int) -> Account:
    """Lock the account until the transaction ends. Usage records, which only reference it, do not wait."""
    return Account.objects.select_for_update(no_key=True).get(pk=account_id)


def write_tier(account: Account, tier: str) -> None:
    """Write the tier of a locked account, publish it after commit, and lift the limit if it went up."""
    if tier == account.tier:
        return
    Account.objects.filter(pk=account.pk).update(tier=tier)
    accounts.publish_entitlement_on_commit(account.pk)
    if plans.get_tier_rank(tier) > plans.get_tier_rank(account.tier):
        signals.send_limit_lifted(account.user_id)
    account.tier = tier


def get_fallback_tier(account: Account) -> str:
    """Return the tier that applies when no subscription entitles to one."""
    return account.granted_tier or "FREE"


# --- Tiers granted by staff ---

log = structlog.get_logger(__name__)

DRIFT_CHECK_SECONDS = 4.0  # the task's time limit is five
DRIFT_CHECK_TASK = "billing.tasks.check_drift"


def grant_tier(account_id: int, tier: str, *, actor_id: int | None, reason: str) -> None:
    """Set a tier until a live subscription says otherwise. FREE removes a grant. Nothing changes at Stripe."""
    with transaction.atomic():
        account = lock_account(account_id)
        PlanChange.objects.create(
            account=account,
            kind=PlanChange.Kind.GRANT,
            state=PlanChange.State.DONE,
            from_tier=account.tier,
            to_tier=tier,
            actor_id=actor_id,
            reason=reason,
        )
        Account.objects.filter(pk=account_id).update(granted_tier=None if tier == "FREE" else tier)
        write_tier(account, tier)
        if account.stripe_customer_id:
            transaction.on_commit(lambda: _enqueue_drift_check(account_id))


def _enqueue_drift_check(account_id: int) -> None:
    try:
        current_app.send_task(DRIFT_CHECK_TASK, args=[account_id], retry=False)
    except OperationalError:
        log.warning("drift_check_not_enqueued", account_id=account_id, error="broker_unavailable")


def check_price_drift(account_id: int) -> None:
    """Log a warning if Stripe charges for another tier than the granted one."""
    account = Account.objects.get(pk=account_id)
    if not account.stripe_customer_id:
        return
    try:
        subscriptions = subscription_api.list_subscriptions(
            api_client.start_request_deadline(DRIFT_CHECK_SECONDS), account.stripe_customer_id
        )
    except (PaymentServiceError, PaymentsDisabled) as problem:
        log.info("drift_check_failed", account_id=account_id, error=type(problem).__name__)
        return
    expected = TierPolicy.objects.filter(tier=account.tier).values_list("stripe_price_id", flat=True).first()
    for subscription in subscriptions:
        if subscription.is_live and subscription.price_id and subscription.price_id != (expected or ""):
            log.warning(
                "billing_drift",
                account_id=account_id,
                tier=account.tier,
                subscription_id=subscription.id,
                price_id=subscription.price_id,
                expected_price_id=expected,
            )
            return
