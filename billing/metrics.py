"""What billing counts for Prometheus; every label comes from a closed set (B19.5, D16)."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

limit_checks = Counter(
    "pilothouse_billing_checks_total",
    "Limit checks by result: allowed, daily, weekly, held, degraded.",
    ["result"],
)
usage_records = Counter(
    "pilothouse_billing_records_total",
    "Recorded model calls by the step that decided their cost.",
    ["source"],
)
publish_failures = Counter(
    "pilothouse_billing_publish_failures_total",
    "Times that a row's state could not be copied to Redis; it is tried again within a minute.",
)
ledger_entries = Counter(
    "pilothouse_billing_ledger_entries_total",
    "Movements of credit by kind.",
    ["kind"],
)
billing_leaks = Counter(
    "pilothouse_billing_leaks_total",
    "Things that were delivered and could not be charged, by what went wrong.",
    ["leak_type"],
)
stripe_calls = Histogram(
    "pilothouse_billing_gateway_seconds",
    "Calls of Stripe by operation and outcome: done, declined, missing, refused, down.",
    ["operation", "outcome"],
)
staff_alerts = Counter(
    "pilothouse_billing_alerts_total",
    "Things that staff should look at, by kind.",
    ["kind"],
)
oldest_stripe_event_age = Gauge(
    "pilothouse_billing_oldest_event_seconds",
    "Age of the oldest event of Stripe that is not applied yet.",
    multiprocess_mode="mostrecent",
)
stripe_events = Counter(
    "pilothouse_billing_events_total",
    "Events of Stripe by type (those that have an effect, or other) and what became of them.",
    ["type", "state"],
)
