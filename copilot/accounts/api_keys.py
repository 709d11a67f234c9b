"""Create, verify and revoke API keys, which are shown once and stored as hashes."""

from __future__ import annotations

import re
import secrets
import string
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from config.core.audit import record_audit_event
from config.core.encryption import find_pepper, get_site_peppers, hash_secret, is_current_hash
from config.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from copilot.models import ApiKey

SCOPES = ("read", "chat", "manage", "billing", "staff")
DEFAULT_SCOPES = ("read", "chat")
MAX_KEYS_PER_USER = 50  # readable as a list; also limits what a stolen cookie can create
LAST_USED_INTERVAL = timedelta(minutes=1)  # a write per request would be wasteful
_TOKEN_PATTERN = re.compile(r"ph_user_([a-z0-9]{10})_([A-Za-z0-9_-]{43})", re.ASCII)
_PREFIX_ALPHABET = string.ascii_lowercase + string.digits
_PEPPER_NAME = "copilot.api_keys"


@dataclass(frozen=True, kw_only=True)
class NewApiKey:
    """A key at the only moment its secret is known."""

    row: ApiKey
    token: str


def create_api_key(
    user: User,
    *,
    name: str = "",
    scopes: tuple[str, ...] = DEFAULT_SCOPES,
    expires_at: datetime | None = None,
) -> NewApiKey:
    """Create a key. Only its hash is stored."""
    _check_scopes(user, scopes)
    if expires_at is not None and expires_at <= timezone.now():
        raise InvalidRequest("expires_at: must be in the future.")
    if _unrevoked_keys(user.pk).count() >= MAX_KEYS_PER_USER:
        raise Conflict(
            f"You can have up to {MAX_KEYS_PER_USER} keys. Revoke one first.", code="too_many_keys"
        )
    prefix = "".join(secrets.choice(_PREFIX_ALPHABET) for _ in range(10))
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        row = ApiKey.objects.create(
            user=user,
            name=name,
            prefix=prefix,
            secret_hash=hash_secret(_PEPPER_NAME, secret, get_site_peppers()[0]),
            scopes=[scope for scope in SCOPES if scope in scopes],
            expires_at=expires_at.astimezone(UTC) if expires_at else None,
        )
        record_audit_event("api_key.created", actor=user, target=("api_key", row.pk), scopes=row.scopes)
    row.refresh_from_db(fields=["created_at"])
    return NewApiKey(row=row, token=f"ph_user_{prefix}_{secret}")


def verify_api_key(token: str) -> ApiKey | None:
    """Return the key of a token with its user, or None. Every refusal costs the same comparison."""
    shape = _TOKEN_PATTERN.fullmatch(token)
    prefix, secret = shape.groups() if shape else ("", "")
    row = ApiKey.objects.select_related("user").filter(prefix=prefix).first() if shape else None
    pepper = find_pepper(_PEPPER_NAME, secret, row.secret_hash if row else "0" * 64, get_site_peppers())
    if row is None or pepper is None or not _is_valid(row):
        return None
    if not is_current_hash(_PEPPER_NAME, row.secret_hash, get_site_peppers()[0]):
        renewed = hash_secret(_PEPPER_NAME, secret, get_site_peppers()[0])
        ApiKey.objects.filter(pk=row.pk, secret_hash=row.secret_hash).update(secret_hash=renewed)
    if row.last_used_at is None or timezone.now() - row.last_used_at >= LAST_USED_INTERVAL:
        stale = Q(last_used_at=None) | Q(last_used_at__lte=Now() - LAST_USED_INTERVAL)
        ApiKey.objects.filter(stale, pk=row.pk).update(last_used_at=Now())
    return row


def list_api_keys(user_id: int) -> list[ApiKey]:
    return list(_unrevoked_keys(user_id).order_by("-created_at", "id"))


def revoke_api_key(user_id: int, key_id: UUID) -> None:
    with transaction.atomic():
        if not _unrevoked_keys(user_id).filter(pk=key_id).update(revoked_at=Now()):
            raise NotFound
        record_audit_event("api_key.revoked", target=("api_key", key_id), owner_id=user_id)


def revoke_all_api_keys(user_id: int) -> int:
    with transaction.atomic():
        revoked = _unrevoked_keys(user_id).update(revoked_at=Now())
        if revoked:
            record_audit_event("api_key.revoked", target=("user", user_id), count=revoked)
    return revoked


def _unrevoked_keys(user_id: int) -> QuerySet[ApiKey]:
    return ApiKey.objects.unrevoked().filter(user_id=user_id)


def _is_valid(row: ApiKey) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > timezone.now())


def _check_scopes(user: User, scopes: tuple[str, ...]) -> None:
    if not scopes:
        raise InvalidRequest("scopes: choose at least one.")
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise InvalidRequest(f"scopes: {unknown[0][:40]!r} is not one of {', '.join(SCOPES)}.")
    if "staff" in scopes and not user.is_staff:
        raise Forbidden("Only staff can create keys with the staff scope.")


def count_old_hashes() -> int:
    """Count usable keys whose hash was made under another SECRET_KEY, or in an old format."""
    rows = ApiKey.objects.active()
    stored = rows.values_list("secret_hash", flat=True).iterator()
    return sum(
        not is_current_hash(_PEPPER_NAME, secret_hash, get_site_peppers()[0]) for secret_hash in stored
    )


def erase_api_keys(user_id: int) -> int:
    removed, _ = ApiKey.objects.filter(user=user_id).delete()
    return removed
