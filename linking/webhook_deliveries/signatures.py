"""Sign webhook deliveries, with two secrets while one is being rotated."""

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
    """Sign the timestamp, a full stop and the raw body."""
    signed = f"{timestamp}.".encode() + body
    return f"{SIGNATURE_VERSION}={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


def build_signature_header(signing_secrets: Sequence[str], timestamp: int, body: bytes) -> str:
    """Return one signature per secret; a receiver accepts any that matches the secret it knows."""
    return ",".join(compute_signature(secret, timestamp, body) for secret in signing_secrets)
