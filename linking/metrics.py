"""Prometheus metrics of linking. Every label comes from a closed set; none names a person or a place."""

from __future__ import annotations

from prometheus_client import Counter

platform_updates = Counter(
    "pilothouse_bot_updates_total",
    "Updates of chat platforms by how they went; failed ones were tried three times and left.",
    ["platform", "outcome"],
)
platform_refusals = Counter(
    "pilothouse_platform_refusals_total",
    "Messages that a platform did not take at once: busy, away, gone, unreachable or refused.",
    ["platform", "problem"],
)
delivery_attempts = Counter(
    "pilothouse_deliveries_total",
    "Tries of deliveries to third parties' bots: delivered, again (will be tried once more), failed (given up).",
    ["outcome"],
)
