"""Calls staff: one line in the log that can be watched for, and one count."""

from __future__ import annotations

import logging
from typing import Literal

from billing import metrics

logger = logging.getLogger(__name__)

Kind = Literal[
    "stripe_key_refused",
    "top_up_review",
    "dispute",
    "event_failed",
    "unknown_price",
    "several_subscriptions",
    "tier_drift",
]


def call_staff(kind: Kind, text: str, **ids: str | int | None) -> None:
    """Names things by our ids and Stripe's; never an address, a key or what somebody wrote (B19.5)."""
    metrics.alerts.labels(kind).inc()
    said = " ".join(f"{name}={value}" for name, value in ids.items())
    logger.error("billing_alert kind=%s %s %s", kind, text, said)
