"""Prometheus metrics of billing, and alerts to staff. Every label value comes from a closed set."""

from __future__ import annotations

from typing import Literal

import structlog
from celery import current_app
from kombu.exceptions import OperationalError
from prometheus_client import Counter, Gauge, Histogram

log = structlog.get_logger(__name__)

limit_checks = Counter(
    "pilothouse_billing_checks_total",
    "Limit checks by result: allowed, daily, weekly, held, degraded.",
    ["result"],
)
usage_records = Counter(
    "pilothouse_billing_records_total",
    "Recorded model calls by the source of their cost.",
    ["source"],
)
publish_failures = Counter(
    "pilothouse_billing_publish_failures_total",
    "Failed copies of a row to Redis; each is retried within a minute.",
)
ledger_entries = Counter(
    "pilothouse_billing_ledger_entries_total",
    "Ledger entries by kind.",
    ["kind"],
)
billing_leaks = Counter(
    "pilothouse_billing_leaks_total",
    "Deliveries that could not be charged, by cause.",
    ["leak_type"],
)
stripe_calls = Histogram(
    "pilothouse_billing_gateway_seconds",
    "Calls to Stripe by operation and outcome: done, declined, missing, refused, down.",
    ["operation", "outcome"],
)
staff_alerts = Counter(
    "pilothouse_billing_alerts_total",
    "Staff alerts by kind.",
    ["kind"],
)
oldest_stripe_event_age = Gauge(
    "pilothouse_billing_oldest_event_seconds",
    "Age of the oldest Stripe event that is not applied yet.",
    multiprocess_mode="mostrecent",
)
stripe_events = Counter(
    "pilothouse_billing_events_total",
    "Stripe events by type (those we handle, or other) and outcome.",
    ["type", "state"],
)


# --- Alerts to staff ---

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
    staff_alerts.labels(kind).inc()
    log.error("billing_alert", kind=kind, reason=text, **ids)
    details = " ".join(f"{name}={value}" for name, value in ids.items())
    _enqueue_staff_email(kind, f"{text} {details}")


def _enqueue_staff_email(kind: StaffAlertKind, text: str) -> None:
    """Send at once rather than after commit, because the alert also holds if the work is rolled back."""
    try:
        current_app.send_task(STAFF_EMAIL_TASK, args=[kind, text], retry=False)
    except OperationalError:
        log.warning("staff_email_not_enqueued", kind=kind, error="broker_unavailable")
