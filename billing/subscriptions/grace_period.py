"""Handle unpaid renewals: start the grace period, notify the user per attempt, and lapse the plan afterwards."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog
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

log = structlog.get_logger(__name__)


def handle_failed_renewal(
    account_id: int, invoice: objects.StripeInvoice, *, attempt: int, attempted_at: datetime
) -> None:
    """Record a failed renewal payment. First invoices and upgrades start no grace period.

    The current state at Stripe decides: if the invoice was paid in the meantime, there is nothing to do.
    """
    sync_subscription(account_id)
    if not invoice.is_renewal or invoice.status == "paid":
        return
    mirror = Subscription.objects.filter(account=account_id, status="past_due").first()
    if mirror is None:
        return
    grace_until = attempted_at + timedelta(days=policies.get_rules().policy.grace_days)
    if attempt <= 1:  # later attempts do not extend it
        Subscription.objects.filter(pk=mirror.pk).update(
            grace_until=Least("grace_until", Value(grace_until, DateTimeField()))
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
    """Lapse subscriptions still past due after their grace period, and return how many were checked."""
    overdue = Subscription.objects.overdue(timezone.now())
    account_ids = list(overdue.values_list("account_id", flat=True))
    for account_id in account_ids:
        try:
            sync_subscription(account_id)  # sync sees either the payment or that the grace period is over
        except PaymentsDisabled:
            _lapse_subscription(account_id)
        except PaymentServiceError:
            log.warning("grace_period_check_failed", account_id=account_id)
    return len(account_ids)


def _lapse_subscription(account_id: int) -> None:
    """Lapse by the last known state, because there is no key to ask Stripe with."""
    with transaction.atomic():
        account = account_tiers.lock_account(account_id)
        overdue = Subscription.objects.overdue(timezone.now()).filter(account=account)
        mirror = overdue.first()
        if mirror is not None and overdue.update(entitles=False) and account.tier != "ENTERPRISE":
            account_tiers.write_tier(account, account_tiers.get_fallback_tier(account))
            post_lapsed_notice(account, mirror)
