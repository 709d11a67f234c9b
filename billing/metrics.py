"""What billing counts for Prometheus; every label comes from a closed set (B19.5, D16)."""

from __future__ import annotations

from prometheus_client import Counter

checks = Counter(
    "pilothouse_billing_checks_total",
    "Limit checks by result: allowed, daily, weekly, degraded.",
    ["result"],
)
records = Counter(
    "pilothouse_billing_records_total",
    "Recorded model calls by the step that decided their cost.",
    ["source"],
)
