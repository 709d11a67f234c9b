"""The Celery door of billing: what is done by the clock. Each may overlap with itself, and each has a time limit (B19.4)."""

from __future__ import annotations

import logging
from datetime import timedelta

from celery import shared_task

from billing import emails, ledger, metrics, notices, policies
from billing.stripe import event_handlers, webhook_events
from billing.subscriptions import account_tiers, grace_period, stripe_sync
from billing.top_ups import auto_top_ups, reconciliation
from billing.usage import rollup, windows

logger = logging.getLogger(__name__)
MAX_BROKER_DELAY = timedelta(minutes=1)


@shared_task(name="billing.tasks.publish_windows", ignore_result=True, time_limit=50)
def publish_windows() -> None:
    """Every minute: what changed of late is copied to Redis once more (B5.6)."""
    windows.publish_recent_windows()
    policies.publish_entitlement_changes()


@shared_task(name="billing.tasks.verify_windows", ignore_result=True, time_limit=3_600)
def verify_windows() -> None:
    """Every night: rows that do not add up are for people to look at (B5.7)."""
    for one in windows.find_window_mismatches():
        logger.error("%s from %s of account %s does not add up.", one.kind, one.starts_on, one.account_id)


@shared_task(name="billing.tasks.expire_credits", ignore_result=True, time_limit=600)
def expire_credits() -> None:
    """Every hour: credit whose time is over, and a word to those whose credit is next (B9.5)."""
    ledger.expire_due_credits()
    notices.post_credit_expiry_notices()


@shared_task(name="billing.tasks.fold_usage", ignore_result=True, time_limit=3_600)
def fold_usage() -> None:
    """Every night: records older than 400 days become sums of their month (B3.2)."""
    rollup.roll_up_old_records()


@shared_task(name="billing.tasks.check_drift", ignore_result=True, time_limit=5)
def check_drift(account_id: int) -> None:
    """After staff set a tier: whether Stripe charges for another; never tried again (B15.4)."""
    account_tiers.check_price_drift(account_id)


@shared_task(name="billing.tasks.lapse_overdue", ignore_result=True, time_limit=3_000)
def lapse_overdue() -> None:
    """Every hour: who has not paid in the time of grace (B15.1)."""
    grace_period.lapse_overdue_subscriptions()


@shared_task(name="billing.tasks.reconcile", ignore_result=True, time_limit=4 * 3_600)
def reconcile() -> None:
    """Every night: what Stripe told nobody, or nobody who listened (B14.7)."""
    stripe_sync.reconcile_subscriptions()


@shared_task(name="billing.tasks.mail_notice", ignore_result=True, time_limit=60)
def mail_notice(notice_id: int) -> None:
    emails.send_notice_email(notice_id)


@shared_task(name="billing.tasks.mail_staff", ignore_result=True, time_limit=60)
def mail_staff(kind: str, text: str) -> None:
    """What needs a person (B13.4, B14.3); its line in the log is there whatever becomes of this."""
    emails.send_staff_email(kind, text)


@shared_task(name="billing.tasks.mail_waiting", ignore_result=True, time_limit=1_800)
def mail_waiting() -> None:
    """Every hour: mails whose first attempt was lost."""
    emails.send_waiting_emails()


@shared_task(name="billing.tasks.apply_event", ignore_result=True, time_limit=110)
def apply_event(pk: int) -> None:
    """One word of Stripe's (B14.3). A short wait is kept by the broker, a long one by the sweep."""
    wait = event_handlers.apply_stripe_event(pk)
    if wait is not None and wait <= MAX_BROKER_DELAY:
        apply_event.apply_async(args=(pk,), countdown=wait.total_seconds() + 1)


@shared_task(name="billing.tasks.sweep_events", ignore_result=True, time_limit=55)
def sweep_events() -> None:
    """Every minute: events whose task never came or never ended, and charges nobody heard the end of."""
    metrics.oldest_stripe_event_age.set(webhook_events.get_oldest_event_age_seconds())
    for pk in webhook_events.list_overdue_event_ids():
        apply_event.apply_async(args=(pk,))
    auto_top_ups.retry_stuck_charges()


@shared_task(name="billing.tasks.auto_top_up", ignore_result=True, time_limit=110)
def auto_top_up(account_id: int) -> None:
    """After a spend that left little (B10.4)."""
    auto_top_ups.top_up_if_low(account_id)


@shared_task(name="billing.tasks.reconcile_top_ups", ignore_result=True, time_limit=3_600)
def reconcile_top_ups() -> None:
    """Every night: top-ups whose end was never told, and payloads old enough to be forgotten (B14.7, B3.2)."""
    reconciliation.reconcile_open_top_ups()
    webhook_events.clear_old_payloads()
