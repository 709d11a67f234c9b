"""Alert staff by a log line, a metric and an email sent in the background."""

from __future__ import annotations

from typing import Literal

import structlog
from celery import current_app
from kombu.exceptions import OperationalError

from billing import metrics

log = structlog.get_logger(__name__)
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
    """Alert staff. Identify things by our ids and Stripe's; never include addresses, keys or people's text."""
    metrics.staff_alerts.labels(kind).inc()
    log.error("billing_alert", kind=kind, reason=text, **ids)
    details = " ".join(f"{name}={value}" for name, value in ids.items())
    _enqueue_staff_email(kind, f"{text} {details}")


def _enqueue_staff_email(kind: StaffAlertKind, text: str) -> None:
    """Send at once rather than after commit, because the alert also holds if the work is rolled back."""
    try:
        current_app.send_task(STAFF_EMAIL_TASK, args=[kind, text], retry=False)
    except OperationalError:
        log.warning("staff_email_not_enqueued", kind=kind, error="broker_unavailable")
