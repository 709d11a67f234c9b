"""Create, verify and revoke bot keys, of which only a hash is stored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address, ip_network
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models.functions import Now

from config.core.encryption import get_site_peppers
from config.core.errors import InvalidRequest
from config.core.hashed_keys import KeyFormat
from linking.errors import LinkNotFound
from linking.models import PLATFORM_ID_PATTERN, PLATFORMS, BotKey, Platform
from linking.models.bot_keys import BOT_KEY_SCOPES


def _get_peppers() -> tuple[str, ...]:
    return (settings.BOT_KEY_PEPPER,) if settings.BOT_KEY_PEPPER else get_site_peppers()


_FORMAT = KeyFormat("ph_bot", salt="linking.bot_keys", get_peppers=_get_peppers)


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
    key = _FORMAT.generate_key()
    row = BotKey.objects.create(
        name=name,
        platform=platform,
        bot_account=bot_account,
        prefix=key.prefix,
        secret_hash=key.secret_hash,
        scopes=[scope for scope in BOT_KEY_SCOPES if scope in scopes],
        rate_per_minute=rate_per_minute or settings.BOT_KEY_RATE_PER_MINUTE,
        allowed_cidrs=list(allowed_cidrs),
        created_by=created_by,
        expires_at=expires_at,
    )
    row.refresh_from_db(fields=["created_at"])
    return NewBotKey(row=row, key=key.token)


def verify_bot_key(key: str, address: str) -> BotKey | None:
    """Return the row of a valid key used from this address, or None."""
    return _FORMAT.verify_key(
        BotKey.objects.all(), key, accepts=lambda row: row.is_valid() and _is_allowed_address(row, address)
    )


def filter_valid_keys(key_ids: Sequence[UUID]) -> set[UUID]:
    """Return the keys that are still valid; called every second for all open streams."""
    return set(BotKey.objects.active().filter(pk__in=key_ids).values_list("pk", flat=True))


def revoke_bot_key(key_id: UUID) -> None:
    if not BotKey.objects.unrevoked().filter(pk=key_id).update(revoked_at=Now()):
        raise LinkNotFound


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


def count_old_hashes() -> int:
    return _FORMAT.count_old_hashes(BotKey.objects.active())
