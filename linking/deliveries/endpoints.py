"""Where a bot account is told of things: one address, its secret, and whether it is used (L17)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from copilot.errors import NotFound
from copilot.sealing import seal, unseal
from linking.conversations import Bot
from linking.deliveries import signing
from linking.deliveries.posting import Poster
from linking.models import BotKey, DeliveryEndpoint


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """As its bot may see it; the secret only at the moment it is made."""

    url: str
    enabled: bool
    disabled_reason: str | None
    failures: int
    secret: str | None = None


def is_on(bot: Bot) -> bool:
    """Whether something can be told to this bot account later (L16)."""
    return _of(bot).filter(disabled_at=None).exists()


def get(bot: Bot) -> Endpoint:
    row = _of(bot).first()
    if row is None:
        raise NotFound
    return _shown(row)


def put(bot: Bot, url: str, key: BotKey) -> Endpoint:
    """Another address, switched on anew; a first one comes with its secret, which is shown this once."""
    checked = str(Poster().checked(url))
    changes = {"url": checked, "disabled_at": None, "disabled_reason": "", "failures": 0}
    secret = signing.new_secret()
    with transaction.atomic():
        row, made = DeliveryEndpoint.objects.select_for_update().get_or_create(
            platform=bot.platform,
            bot_account=bot.bot_account,
            defaults={**changes, "secret": seal(secret), "created_by_key": key},
        )
        if not made:
            DeliveryEndpoint.objects.filter(pk=row.pk).update(**changes)
            row.refresh_from_db()
    return _shown(row, secret=secret if made else None)


def delete(bot: Bot) -> None:
    if not _of(bot).delete()[0]:
        raise NotFound


def rotate(bot: Bot) -> Endpoint:
    """A new secret; for a day the old one signs too, so that receivers can change at their leisure."""
    secret = signing.new_secret()
    with transaction.atomic():
        row = _of(bot).select_for_update().first()
        if row is None:
            raise NotFound
        row.old_secret, row.secret, row.rotated_at = row.secret, seal(secret), Now()
        row.save(update_fields=["old_secret", "secret", "rotated_at"])
    return _shown(row, secret=secret)


def secrets_of(row: DeliveryEndpoint) -> list[str]:
    overlap = timedelta(seconds=settings.DELIVERY_ROTATION_SECONDS)
    both = bool(row.old_secret) and row.rotated_at is not None and row.rotated_at > timezone.now() - overlap
    return [unseal(one) for one in ((row.secret, row.old_secret) if both else (row.secret,))]


def _of(bot: Bot) -> QuerySet[DeliveryEndpoint]:
    return DeliveryEndpoint.objects.filter(platform=bot.platform, bot_account=bot.bot_account)


def _shown(row: DeliveryEndpoint, *, secret: str | None = None) -> Endpoint:
    return Endpoint(
        url=row.url,
        enabled=row.disabled_at is None,
        disabled_reason=row.disabled_reason or None,
        failures=row.failures,
        secret=secret,
    )
