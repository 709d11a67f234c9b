"""Create, verify and revoke API keys, which are shown once and stored as hashes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from config.core.audit import record_audit_event
from config.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from config.core.hashed_keys import KeyFormat
from copilot.models import ApiKey

SCOPES = ("read", "chat", "manage", "billing", "staff")
DEFAULT_SCOPES = ("read", "chat")
MAX_KEYS_PER_USER = 50  # readable as a list; also limits what a stolen cookie can create
_FORMAT = KeyFormat("ph_user", salt="copilot.api_keys")


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
    key = _FORMAT.generate_key()
    with transaction.atomic():
        row = ApiKey.objects.create(
            user=user,
            name=name,
            prefix=key.prefix,
            secret_hash=key.secret_hash,
            scopes=[scope for scope in SCOPES if scope in scopes],
            expires_at=expires_at.astimezone(UTC) if expires_at else None,
        )
        record_audit_event("api_key.created", actor=user, target=("api_key", row.pk), scopes=row.scopes)
    row.refresh_from_db(fields=["created_at"])
    return NewApiKey(row=row, token=key.token)


def verify_api_key(token: str) -> ApiKey | None:
    """Return the key of a token with its user, or None."""
    return _FORMAT.verify_key(ApiKey.objects.select_related("user"), token)


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


def _check_scopes(user: User, scopes: tuple[str, ...]) -> None:
    if not scopes:
        raise InvalidRequest("scopes: choose at least one.")
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise InvalidRequest(f"scopes: {unknown[0][:40]!r} is not one of {', '.join(SCOPES)}.")
    if "staff" in scopes and not user.is_staff:
        raise Forbidden("Only staff can create keys with the staff scope.")


def count_old_hashes() -> int:
    return _FORMAT.count_old_hashes(ApiKey.objects.active())


def erase_api_keys(user_id: int) -> int:
    removed, _ = ApiKey.objects.filter(user=user_id).delete()
    return removed
