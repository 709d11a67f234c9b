"""A renewal that was not paid: some days of grace, a word per attempt, and what follows when they are over (B15.1)."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import DateTimeField, Value
from django.db.models.functions import Least
from django.utils import timezone

from billing import notices, policies, redirects
from billing.errors import PaymentsDisabled, PaymentServiceError
from billing.models import Account, Subscription
from billing.stripe import objects
from billing.subscriptions import account_tiers
from billing.subscriptions.stripe_sync import post_lapsed_notice, sync_subscription

logger = logging.getLogger(__name__)


def handle_failed_renewal(
    account_id: int, invoice: objects.StripeInvoice, *, attempt: int, attempted_at: datetime
) -> None:
    """An attempt to collect it came to nothing. A first or an upgrade invoice starts no grace.

    What Stripe says now decides: if it was paid meanwhile there is nothing to tell.
    """
    sync_subscription(account_id)
    if not invoice.is_renewal or invoice.status == "paid":
        return
    mirror = Subscription.objects.filter(account=account_id, status="past_due").first()
    if mirror is None:
        return
    until = attempted_at + timedelta(days=policies.get_rules().policy.grace_days)
    if attempt <= 1:  # later ones do not extend it
        Subscription.objects.filter(pk=mirror.pk).update(
            grace_until=Least("grace_until", Value(until, DateTimeField()))
        )
    _post_failure_notice(account_id, invoice, attempt, mirror)


def _post_failure_notice(
    account_id: int, invoice: objects.StripeInvoice, attempt: int, mirror: Subscription
) -> None:
    mirror.refresh_from_db(fields=["grace_until"])
    user_id = Account.objects.values_list("user_id", flat=True).get(pk=account_id)
    notices.post_notice(
        user_id,
        "payment_failed",
        dedupe_key=f"payment_failed:{invoice.id}:{attempt}",
        data={
            "attempt": attempt,
            "last_attempt": invoice.next_attempt_at is None,
            "invoice_url": invoice.hosted_url,
            "portal_url": redirects.get_portal_page_url(),
            "grace_until": f"{mirror.grace_until:%Y-%m-%dT%H:%M:%SZ}" if mirror.grace_until else "",
        },
        mail=True,
    )


def lapse_overdue_subscriptions() -> int:
    """Every hour: who is still past due when the grace is over falls back. How many were looked at."""
    due = Subscription.objects.filter(status="past_due", entitles=True, grace_until__lte=timezone.now())
    looked_at = list(due.values_list("account_id", flat=True))
    for account_id in looked_at:
        try:
            sync_subscription(
                account_id
            )  # if it was paid, Stripe knows; if not, sync itself sees that the grace is over
        except PaymentsDisabled:
            _lapse_subscription(account_id)
        except PaymentServiceError:
            logger.warning("Account %s stays in grace: Stripe could not be asked.", account_id)
    return len(looked_at)


def _lapse_subscription(account_id: int) -> None:
    """By what we were told last: there is no key to ask with."""
    with transaction.atomic():
        account = account_tiers.lock_account(account_id)
        over = Subscription.objects.filter(
            account=account, status="past_due", entitles=True, grace_until__lte=timezone.now()
        )
        mirror = over.first()
        if mirror is not None and over.update(entitles=False) and account.tier != "ENTERPRISE":
            account_tiers.write_tier(account, account_tiers.get_fallback_tier(account))
            post_lapsed_notice(account, mirror)
