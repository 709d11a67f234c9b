"""Billing's Celery tasks. Each may overlap with itself, and each has a time limit."""

from __future__ import annotations

from datetime import timedelta

import structlog
from celery import shared_task

from billing import emails, ledger, metrics, notices, policies
from billing.stripe import event_handlers, webhook_events
from billing.subscriptions import account_tiers, grace_period, stripe_sync
from billing.top_ups import auto_top_ups, purchases
from billing.usage import usage_records, windows

log = structlog.get_logger(__name__)
MAX_BROKER_DELAY = timedelta(minutes=1)


@shared_task(name="billing.tasks.publish_windows", ignore_result=True, time_limit=50)
def publish_windows() -> None:
    """Every minute: publish recent changes to Redis again, in case the first publish failed."""
    windows.publish_recent_windows()
    policies.publish_entitlement_changes()


@shared_task(name="billing.tasks.verify_windows", ignore_result=True, time_limit=3_600)
def verify_windows() -> None:
    """Every night: log usage windows that do not match their records."""
    for mismatch in windows.find_window_mismatches():
        log.error(
            "usage_window_mismatch",
            account_id=mismatch.account_id,
            kind=mismatch.kind,
            starts_on=mismatch.starts_on.isoformat(),
        )


@shared_task(name="billing.tasks.expire_credits", ignore_result=True, time_limit=600)
def expire_credits() -> None:
    """Every hour: expire due credits and notify users whose credits expire soon."""
    ledger.expire_due_credits()
    notices.post_credit_expiry_notices()


@shared_task(name="billing.tasks.fold_usage", ignore_result=True, time_limit=3_600)
def fold_usage() -> None:
    """Every night: roll up records older than 400 days into monthly sums."""
    usage_records.roll_up_old_records()


@shared_task(name="billing.tasks.check_drift", ignore_result=True, time_limit=5)
def check_drift(account_id: int) -> None:
    """After staff set a tier: check once whether Stripe charges for another."""
    account_tiers.check_price_drift(account_id)


@shared_task(name="billing.tasks.lapse_overdue", ignore_result=True, time_limit=3_000)
def lapse_overdue() -> None:
    """Every hour: lapse subscriptions that were not paid within the grace period."""
    grace_period.lapse_overdue_subscriptions()


@shared_task(name="billing.tasks.reconcile", ignore_result=True, time_limit=4 * 3_600)
def reconcile() -> None:
    """Every night: sync subscriptions, in case a webhook was lost."""
    stripe_sync.reconcile_subscriptions()


@shared_task(name="billing.tasks.mail_notice", ignore_result=True, time_limit=60)
def mail_notice(notice_id: int) -> None:
    emails.send_notice_email(notice_id)


@shared_task(name="billing.tasks.mail_staff", ignore_result=True, time_limit=60)
def mail_staff(kind: str, text: str) -> None:
    emails.send_staff_email(kind, text)


@shared_task(name="billing.tasks.mail_waiting", ignore_result=True, time_limit=1_800)
def mail_waiting() -> None:
    """Every hour: send notice emails whose first attempt was lost."""
    emails.send_waiting_emails()


@shared_task(name="billing.tasks.apply_event", ignore_result=True, time_limit=110)
def apply_event(pk: int) -> None:
    """Apply a Stripe event. A short retry delay goes to the broker; a longer one is left to the sweep."""
    delay = event_handlers.apply_stripe_event(pk)
    if delay is not None and delay <= MAX_BROKER_DELAY:
        apply_event.apply_async(args=(pk,), countdown=delay.total_seconds() + 1)


@shared_task(name="billing.tasks.sweep_events", ignore_result=True, time_limit=55)
def sweep_events() -> None:
    """Every minute: enqueue events whose task was lost, and retry charges whose outcome is unknown."""
    metrics.oldest_stripe_event_age.set(webhook_events.get_oldest_event_age_seconds())
    for pk in webhook_events.list_overdue_event_ids():
        apply_event.apply_async(args=(pk,))
    auto_top_ups.retry_stuck_charges()


@shared_task(name="billing.tasks.auto_top_up", ignore_result=True, time_limit=110)
def auto_top_up(account_id: int) -> None:
    auto_top_ups.top_up_if_low(account_id)


@shared_task(name="billing.tasks.reconcile_top_ups", ignore_result=True, time_limit=3_600)
def reconcile_top_ups() -> None:
    """Every night: ask Stripe about unfinished top-ups, and delete old event payloads."""
    purchases.reconcile_open_top_ups()
    webhook_events.clear_old_payloads()
