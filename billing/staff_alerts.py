"""Calls staff: one line in the log that can be watched for, one count, and a mail that nobody waits for."""

from __future__ import annotations

import logging
from typing import Literal

from celery import current_app
from kombu.exceptions import OperationalError

from billing import metrics

logger = logging.getLogger(__name__)
STAFF_EMAIL_TASK = "billing.tasks.mail_staff"

StaffAlertKind = Literal[
    "stripe_key_refused",
    "top_up_review",
    "dispute",
    "event_failed",
    "unknown_price",
    "several_subscriptions",
    "tier_drift",
]


def alert_staff(kind: StaffAlertKind, text: str, **ids: str | int | None) -> None:
    """Names things by our ids and Stripe's; never an address, a key or what somebody wrote (B19.5)."""
    metrics.staff_alerts.labels(kind).inc()
    said = " ".join(f"{name}={value}" for name, value in ids.items())
    logger.error("billing_alert kind=%s %s %s", kind, text, said)
    _enqueue_staff_email(kind, f"{text} {said}")


def _enqueue_staff_email(kind: StaffAlertKind, text: str) -> None:
    """At once, not after commit: what is called for is also true of work that was rolled back."""
    try:
        current_app.send_task(STAFF_EMAIL_TASK, args=[kind, text], retry=False)
    except OperationalError:
        logger.warning("The mail about %s was not sent: no broker.", kind)
