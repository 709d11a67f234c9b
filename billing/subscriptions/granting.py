"""A tier given by staff, and a look whether Stripe charges for another (B15.4)."""

from __future__ import annotations

import logging

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

from billing import gateway
from billing.errors import GatewayError, PaymentsOff
from billing.models import Account, PlanChange, TierPolicy
from billing.subscriptions import tiers

logger = logging.getLogger(__name__)

DRIFT_SECONDS = 4.0  # of the task's five
DRIFT_TASK = "billing.tasks.check_drift"


def set_tier(account_id: int, tier: str, *, actor_id: int | None, reason: str) -> None:
    """It holds until a live subscription says otherwise. FREE takes a grant back. Nothing changes at Stripe."""
    with transaction.atomic():
        account = tiers.locked(account_id)
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
        tiers.write(account, tier)
        if account.stripe_customer_id:
            transaction.on_commit(lambda: _have_it_checked(account_id))


def _have_it_checked(account_id: int) -> None:
    try:
        current_app.send_task(DRIFT_TASK, args=[account_id], retry=False)
    except OperationalError:
        logger.warning("Whether account %s drifted could not be asked: no broker.", account_id)


def check_drift(account_id: int) -> None:
    """One warning when Stripe charges for something else than the tier; no failure for anyone."""
    account = Account.objects.get(pk=account_id)
    if not account.stripe_customer_id:
        return
    try:
        found = gateway.list_subscriptions(gateway.in_request(DRIFT_SECONDS), account.stripe_customer_id)
    except (GatewayError, PaymentsOff) as problem:
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
