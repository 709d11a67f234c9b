"""Create, verify and revoke bot keys, of which only a hash is stored."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address, ip_network
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from config.core.encryption import find_pepper, get_site_peppers, hash_secret, is_current_hash
from config.core.errors import InvalidRequest
from linking.errors import LinkNotFound
from linking.models import PLATFORM_ID_PATTERN, PLATFORMS, BotKey, Platform
from linking.models.bot_keys import BOT_KEY_SCOPES

LAST_USED_INTERVAL = timedelta(minutes=1)  # saves a write per request
_KEY_PATTERN = re.compile(r"ph_bot_([a-z0-9]{10})_([A-Za-z0-9_-]{43})", re.ASCII)
_PREFIX_ALPHABET = string.ascii_lowercase + string.digits
_HASH_SALT = "linking.bot_keys"


@dataclass(frozen=True, kw_only=True)
class NewBotKey:
    """A new key with its secret, which is not stored and cannot be shown again."""

    row: BotKey
    key: str


def create_bot_key(
    *,
    name: str,
    platform: str,
    bot_account: str,
    scopes: Sequence[str],
    created_by: User | None = None,
    rate_per_minute: int | None = None,
    allowed_cidrs: Sequence[str] = (),
    expires_at: datetime | None = None,
) -> NewBotKey:
    validate_bot_key(
        name=name, platform=platform, bot_account=bot_account, scopes=scopes, allowed_cidrs=allowed_cidrs
    )
    prefix = "".join(secrets.choice(_PREFIX_ALPHABET) for _ in range(10))
    secret = secrets.token_urlsafe(32)
    row = BotKey.objects.create(
        name=name,
        platform=platform,
        bot_account=bot_account,
        prefix=prefix,
        secret_hash=hash_secret(_HASH_SALT, secret, _get_peppers()[0]),
        scopes=[scope for scope in BOT_KEY_SCOPES if scope in scopes],
        rate_per_minute=rate_per_minute or settings.BOT_KEY_RATE_PER_MINUTE,
        allowed_cidrs=list(allowed_cidrs),
        created_by=created_by,
        expires_at=expires_at,
    )
    row.refresh_from_db(fields=["created_at"])
    return NewBotKey(row=row, key=f"ph_bot_{prefix}_{secret}")


def verify_bot_key(key: str, address: str) -> BotKey | None:
    """Return the row of a valid key used from this address, or None. Every refusal takes one hash comparison."""
    shape = _KEY_PATTERN.fullmatch(key)
    prefix, secret = shape.groups() if shape else ("", "")
    row = BotKey.objects.filter(prefix=prefix).first() if shape else None
    pepper = find_pepper(_HASH_SALT, secret, row.secret_hash if row else "0" * 64, _get_peppers())
    if row is None or pepper is None or not _is_valid(row) or not _is_allowed_address(row, address):
        return None
    if not is_current_hash(_HASH_SALT, row.secret_hash, _get_peppers()[0]):
        renewed = hash_secret(_HASH_SALT, secret, _get_peppers()[0])
        BotKey.objects.filter(pk=row.pk, secret_hash=row.secret_hash).update(secret_hash=renewed)
    if row.last_used_at is None or timezone.now() - row.last_used_at >= LAST_USED_INTERVAL:
        stale = Q(last_used_at=None) | Q(last_used_at__lte=Now() - LAST_USED_INTERVAL)
        BotKey.objects.filter(stale, pk=row.pk).update(last_used_at=Now())
    return row


def filter_valid_keys(key_ids: Sequence[UUID]) -> set[UUID]:
    """Return the keys that are still valid; called every second for all open streams."""
    return set(BotKey.objects.active().filter(pk__in=key_ids).values_list("pk", flat=True))


def revoke_bot_key(key_id: UUID) -> None:
    if not BotKey.objects.unrevoked().filter(pk=key_id).update(revoked_at=Now()):
        raise LinkNotFound


def _is_valid(row: BotKey) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > timezone.now())


def _is_allowed_address(row: BotKey, address: str) -> bool:
    if not row.allowed_cidrs:
        return True
    try:
        caller = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(caller, "ipv4_mapped", None)
    return any((mapped or caller) in ip_network(network) for network in row.allowed_cidrs)


def validate_bot_key(
    *, name: str, platform: str, bot_account: str, scopes: Sequence[str], allowed_cidrs: Sequence[str] = ()
) -> None:
    if not name.strip() or len(name) > 100:
        raise InvalidRequest("name: use 1 to 100 characters.")
    if platform not in PLATFORMS:
        raise InvalidRequest(f"platform: must be one of {', '.join(PLATFORMS)}.")
    if platform == Platform.SCRIPTED and not settings.SCRIPTED_PLATFORM:
        raise InvalidRequest("platform: scripted is not enabled. Set SCRIPTED_PLATFORM=1 to use it.")
    if not re.fullmatch(PLATFORM_ID_PATTERN, bot_account, re.ASCII):
        raise InvalidRequest("bot_account: not a valid platform id.")
    if not scopes:
        raise InvalidRequest(f"scopes: choose at least one of {', '.join(BOT_KEY_SCOPES)}.")
    if unknown := [scope for scope in scopes if scope not in BOT_KEY_SCOPES]:
        raise InvalidRequest(f"scopes: {unknown[0][:40]!r} is not one of {', '.join(BOT_KEY_SCOPES)}.")
    for network in allowed_cidrs:
        try:
            ip_network(network)
        except ValueError:
            raise InvalidRequest(f"allowed_cidrs: {network[:60]!r} is not a valid network.") from None


def _get_peppers() -> tuple[str, ...]:
    return (settings.BOT_KEY_PEPPER,) if settings.BOT_KEY_PEPPER else get_site_peppers()


def count_old_hashes() -> int:
    """Count valid keys whose hash was made with another pepper or in the old format."""
    rows = BotKey.objects.active()
    hashes = rows.values_list("secret_hash", flat=True).iterator()
    return sum(not is_current_hash(_HASH_SALT, value, _get_peppers()[0]) for value in hashes)
