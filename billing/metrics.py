"""Prometheus metrics of billing; every label value comes from a closed set."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

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
