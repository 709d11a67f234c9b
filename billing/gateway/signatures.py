"""Whether what came to Stripe's door is Stripe's, over the raw bytes (B14.1)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import stripe

from billing.errors import BadSignature
from billing.gateway.shapes import Event

TOLERANCE_SECONDS = 300


def verified(body: bytes, header: str, secrets: Sequence[str]) -> Event:
    """By any of the secrets: there are two while one replaces the other."""
    if not any(_signed(body, header, secret) for secret in secrets):
        raise BadSignature
    try:
        payload = msgspec.json.decode(body, type=dict[str, object])
        return Event(
            id=msgspec.convert(payload["id"], str),
            type=msgspec.convert(payload["type"], str),
            api_version=msgspec.convert(payload.get("api_version") or "", str),
            livemode=msgspec.convert(payload["livemode"], bool),
            created_at=datetime.fromtimestamp(msgspec.convert(payload["created"], int), UTC),
            payload=payload,
        )
    except (KeyError, ValueError, OverflowError) as problem:  # msgspec's are ValueErrors
        raise BadSignature from problem


def _signed(body: bytes, header: str, secret: str) -> bool:
    try:
        return bool(stripe.WebhookSignature.verify_header(body, header, secret, tolerance=TOLERANCE_SECONDS))
    except (stripe.SignatureVerificationError, ValueError):  # the latter for what is no text at all
        return False
