"""Manage the webhook endpoint of a bot account: its URL, its signing secrets and whether it is enabled."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from config.core.encryption import decrypt_text, encrypt_text
from config.core.errors import NotFound
from linking.conversations.services import BotAccount
from linking.models import BotKey, DeliveryEndpoint
from linking.models.deliveries import DeliveryEndpointQuerySet
from linking.webhook_deliveries.http_client import DeliveryClient

SECRET_OVERLAP = timedelta(days=1)  # in which the old secret signs too


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    url: str
    enabled: bool
    disabled_reason: str | None
    failures: int
    secret: str | None = None  # only in the response to its creation


def has_enabled_endpoint(bot: BotAccount) -> bool:
    return _bot_endpoints(bot).enabled().exists()


def get_endpoint(bot: BotAccount) -> Endpoint:
    row = _bot_endpoints(bot).first()
    if row is None:
        raise NotFound
    return _serialize_endpoint(row)


def set_endpoint(bot: BotAccount, url: str, key: BotKey) -> Endpoint:
    """Set the URL and enable the endpoint. A new endpoint comes with its secret, which is shown only once."""
    checked = str(DeliveryClient().check_url(url))
    changes = {"url": checked, "disabled_at": None, "disabled_reason": "", "failures": 0}
    secret = generate_secret()
    with transaction.atomic():
        row, created = DeliveryEndpoint.objects.select_for_update().get_or_create(
            platform=bot.platform,
            bot_account=bot.bot_account,
            defaults={**changes, "secret": encrypt_text(secret), "created_by_key": key},
        )
        if not created:
            DeliveryEndpoint.objects.filter(pk=row.pk).update(**changes)
            row.refresh_from_db()
    return _serialize_endpoint(row, secret=secret if created else None)


def delete_endpoint(bot: BotAccount) -> None:
    if not _bot_endpoints(bot).delete()[0]:
        raise NotFound


def rotate_secret(bot: BotAccount) -> Endpoint:
    """Create a new secret. The old one signs too for a day."""
    secret = generate_secret()
    with transaction.atomic():
        row = _bot_endpoints(bot).select_for_update().first()
        if row is None:
            raise NotFound
        row.old_secret, row.secret, row.rotated_at = row.secret, encrypt_text(secret), Now()
        row.save(update_fields=["old_secret", "secret", "rotated_at"])
    return _serialize_endpoint(row, secret=secret)


def get_signing_secrets(row: DeliveryEndpoint) -> list[str]:
    rotated_at = row.rotated_at
    in_overlap = (
        bool(row.old_secret) and rotated_at is not None and rotated_at > timezone.now() - SECRET_OVERLAP
    )
    return [decrypt_text(value) for value in ((row.secret, row.old_secret) if in_overlap else (row.secret,))]


def _bot_endpoints(bot: BotAccount) -> DeliveryEndpointQuerySet:
    return DeliveryEndpoint.objects.filter(platform=bot.platform, bot_account=bot.bot_account)


def _serialize_endpoint(row: DeliveryEndpoint, *, secret: str | None = None) -> Endpoint:
    return Endpoint(
        url=row.url,
        enabled=row.disabled_at is None,
        disabled_reason=row.disabled_reason or None,
        failures=row.failures,
        secret=secret,
    )


# --- Signatures ---

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
