"""Decide what visitors may see of a share: rate limits, password locks and file access."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import AddressValueError, IPv6Address
from typing import Literal
from uuid import UUID

import msgspec
from django.contrib.auth.hashers import check_password, make_password
from django.core import signing
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.crypto import salted_hmac

from config.core import rate_limits
from config.core.errors import TooManyRequests
from config.core.json_values import parse_uuid
from copilot import metrics
from copilot.files import services as files
from copilot.models import Share, WorkspaceFile
from copilot.sharing import services as sharing
from copilot.sharing.payloads import SharePayload

ShareEndpoint = Literal["page", "file", "zip"]
REQUESTS_PER_MINUTE: dict[ShareEndpoint, int] = {"page": 60, "file": 300, "zip": 6}
MAX_WRONG_PER_ADDRESS, ADDRESS_WINDOW_SECONDS = 5, 15 * 60
MAX_WRONG_PER_SHARE, SHARE_WINDOW_SECONDS = 50, 3600
UNLOCK_SECONDS = 12 * 3600  # then the password is asked for again
VIEW_WINDOW_SECONDS = 1800  # repeated views within half an hour count once
_KEY_SALT = "copilot.share.key"


# --- Rate limits -------------------------------------------------------------------------------------


def check_rate_limit(address: str, endpoint: ShareEndpoint) -> None:
    """Count the request before anything is looked up, so that a refusal reveals nothing about a token."""
    wait = rate_limits.count_request(
        f"share-{endpoint}", hash_visitor_address(address), limit=REQUESTS_PER_MINUTE[endpoint], seconds=60
    )
    if wait is not None:
        metrics.share_hits.labels(endpoint=endpoint, outcome="limited").inc()
        raise TooManyRequests("Too many requests. Try again in a moment.", retry_after_seconds=wait)


def hash_visitor_address(address: str) -> str:
    """Return a salted hash of an address; of IPv6 only the /64, because one person has very many addresses."""
    with suppress(AddressValueError):  # an IPv4 address is hashed whole
        address = str(int(IPv6Address(address)) >> 64)
    return _salted_hash(address)


def _salted_hash(text: str) -> str:
    return salted_hmac("copilot.visitor", text, algorithm="sha256").hexdigest()[:32]


# --- Read --------------------------------------------------------------------------------------------


def _live_share_filter(prefix: str = "") -> Q:
    """Match shares that are not revoked, expired or purged, of an active owner, by the database's clock."""
    fields = {"revoked_at": None, "purged_at": None, "owner__is_active": True}
    conditions = {f"{prefix}{name}": value for name, value in fields.items()}
    in_time = Q(**{f"{prefix}expires_at": None}) | Q(**{f"{prefix}expires_at__gt": Now()})
    return Q(**conditions) & in_time


def find_live_share(token: UUID) -> Share | None:
    """Return the share of a token, whether or not it is locked."""
    return Share.objects.filter(_live_share_filter(), token=token).first()


def is_unlocked(share: Share, key: str) -> bool:
    if not share.password_hash:
        return True
    grant = _read_key(key)
    return grant is not None and grant == _UnlockGrant(share.pk, share.password_version)


def load_payload(share: Share) -> SharePayload:
    return msgspec.convert(share.payload, SharePayload)


def find_shared_file(token: UUID, file_id: UUID, key: str) -> WorkspaceFile | None:
    """Return the file if token, share, owner, password, allow-list and file all permit it, in one query."""
    grant = _read_key(key)
    unlocked = Q(shared_in__share__password_hash="")
    if grant is not None:
        unlocked |= Q(
            shared_in__share=grant.share_id, shared_in__share__password_version=grant.password_version
        )
    return (
        WorkspaceFile.objects.available()
        .filter(
            _live_share_filter("shared_in__share__"),
            unlocked,
            pk=file_id,
            shared_in__share__token=token,
            scan__in=files.USABLE_SCANS,
        )
        .first()
    )


def list_shared_files(share: Share) -> list[WorkspaceFile]:
    listed = WorkspaceFile.objects.available().filter(shared_in__share=share, scan__in=files.USABLE_SCANS)
    found = {str(file.pk): file for file in listed}
    return [found[file.id] for file in load_payload(share).files if file.id in found]


def record_view(share: Share, address: str) -> None:
    """Count a visitor once per window. Without Redis every view counts."""
    visitor = _salted_hash(f"{share.pk}:{hash_visitor_address(address)}")
    if rate_limits.count_request("share-view", visitor, limit=1, seconds=VIEW_WINDOW_SECONDS) is None:
        sharing.count_share_view(share)


# --- Passwords ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _UnlockGrant:
    """The content of a key: it opens one share as long as its password stays the same."""

    share_id: UUID
    password_version: int


def unlock_share(token: UUID, password: str, address: str) -> str | None:
    """Return a key for the right password, or None. A missing share takes just as long as a wrong password."""
    address_key, share_key = (
        _salted_hash(f"{token}:{hash_visitor_address(address)}"),
        _salted_hash(str(token)),
    )
    _count_attempt("share-unlock-address", address_key, MAX_WRONG_PER_ADDRESS, ADDRESS_WINDOW_SECONDS)
    _count_attempt("share-unlock", share_key, MAX_WRONG_PER_SHARE, SHARE_WINDOW_SECONDS)
    share = find_live_share(token)
    password_hash = share.password_hash if share is not None else ""
    is_right = check_password(password, password_hash or _dummy_password_hash())
    if not is_right or share is None or not password_hash:
        metrics.share_hits.labels(endpoint="unlock", outcome="refused").inc()
        return None
    rate_limits.uncount_request("share-unlock-address", address_key)
    rate_limits.uncount_request("share-unlock", share_key)
    metrics.share_hits.labels(endpoint="unlock", outcome="served").inc()
    return signing.dumps([str(share.pk), share.password_version], salt=_KEY_SALT)


def get_key_lifetime_seconds() -> int:
    return UNLOCK_SECONDS


def _count_attempt(name: str, subject: str, limit: int, seconds: int) -> None:
    """Count before the password is checked, so that parallel attempts all count; a right one is uncounted."""
    wait = rate_limits.count_request(name, subject, limit=limit, seconds=seconds)
    if wait is not None:
        metrics.share_hits.labels(endpoint="unlock", outcome="limited").inc()
        raise TooManyRequests("Too many wrong passwords. Try again later.", retry_after_seconds=wait)


@cache
def _dummy_password_hash() -> str:
    return make_password("nobody has this password")


def _read_key(key: str) -> _UnlockGrant | None:
    if not key:
        return None
    try:
        share_id, version = signing.loads(key, salt=_KEY_SALT, max_age=get_key_lifetime_seconds())
    except signing.BadSignature:
        return None
    share_uuid = parse_uuid(str(share_id))
    return _UnlockGrant(share_uuid, int(version)) if share_uuid is not None else None
