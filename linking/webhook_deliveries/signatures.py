"""How a receiver knows that a delivery is ours and fresh: one or, while a secret is changed, two signatures (L17)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence

SECRET_BYTES = 32
SIGNATURE_VERSION = "v1"


def generate_secret() -> str:
    return f"whsec_{secrets.token_urlsafe(SECRET_BYTES)}"


def compute_signature(secret: str, timestamp: int, body: bytes) -> str:
    """Over the timestamp, a full stop and the raw body."""
    signed = f"{timestamp}.".encode() + body
    return f"{SIGNATURE_VERSION}={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


def build_signature_header(given: Sequence[str], timestamp: int, body: bytes) -> str:
    """The header's value; a receiver that knows one of the secrets finds one that fits."""
    return ",".join(compute_signature(secret, timestamp, body) for secret in given)
