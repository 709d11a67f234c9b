"""The one place where an account's tier is written, so that nobody forgets to tell of it."""

from __future__ import annotations

import logging

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

from billing import accounts, plans, signals
from billing.errors import PaymentsDisabled, PaymentServiceError
from billing.models import Account, PlanChange, TierPolicy
from billing.stripe import api_client, subscription_api


def lock_account(account_id: int) -> Account:
    """For the rest of the transaction; recordings, which only refer to it, do not wait."""
    return Account.objects.select_for_update(no_key=True).get(pk=account_id)


def write_tier(account: Account, tier: str) -> None:
    """Of a locked account. Copies are told after commit, and whoever was blocked may go on if it was raised (B2.4)."""
    if tier == account.tier:
        return
    Account.objects.filter(pk=account.pk).update(tier=tier)
    accounts.publish_entitlement_on_commit(account.pk)
    if plans.get_tier_rank(tier) > plans.get_tier_rank(account.tier):
        signals.notify_limit_lifted(account.user_id)
    account.tier = tier


def get_fallback_tier(account: Account) -> str:
    """What is left when a subscription stops entitling (B11.3)."""
    return account.granted_tier or "FREE"


# MERGED subscriptions.granting: A tier given by staff, and a look whether Stripe charges for another (B15.4).

logger = logging.getLogger(__name__)

DRIFT_CHECK_SECONDS = 4.0  # of the task's five
DRIFT_CHECK_TASK = "billing.tasks.check_drift"


def grant_tier(account_id: int, tier: str, *, actor_id: int | None, reason: str) -> None:
    """It holds until a live subscription says otherwise. FREE takes a grant back. Nothing changes at Stripe."""
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
        logger.warning("Whether account %s drifted could not be asked: no broker.", account_id)


def check_price_drift(account_id: int) -> None:
    """One warning when Stripe charges for something else than the tier; no failure for anyone."""
    account = Account.objects.get(pk=account_id)
    if not account.stripe_customer_id:
        return
    try:
        found = subscription_api.list_subscriptions(
            api_client.start_request_deadline(DRIFT_CHECK_SECONDS), account.stripe_customer_id
        )
    except (PaymentServiceError, PaymentsDisabled) as problem:
        logger.info("Whether account %s drifted is not known: %s.", account_id, type(problem).__name__)
        return
    expected = TierPolicy.objects.filter(tier=account.tier).values_list("stripe_price_id", flat=True).first()
    for one in found:
        if one.is_live and one.price_id and one.price_id != (expected or ""):
            logger.warning(
                "billing_drift account=%s tier=%s subscription=%s price=%s expected=%s",
                account_id, account.tier, one.id, one.price_id, expected or "-",
            )  # fmt: skip
            return
