"""What strangers may see of a share: who is let in, how often, and with which key; never writes but a view's count (S9–S12)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import AddressValueError, IPv6Address
from typing import Literal
from uuid import UUID

import msgspec
from django.conf import settings
from django.contrib.auth.hashers import check_password, make_password
from django.core import signing
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.crypto import salted_hmac

from config.core import rate_limits
from config.core.errors import TooManyRequests
from config.core.validation import parse_uuid
from copilot import metrics
from copilot.files import services as files
from copilot.models import Share, WorkspaceFile
from copilot.sharing import services as sharing
from copilot.sharing.payloads import SharePayload

ShareEndpoint = Literal["page", "file", "zip"]
REQUESTS_PER_MINUTE: dict[ShareEndpoint, int] = {"page": 60, "file": 300, "zip": 6}
MAX_WRONG_PER_ADDRESS, ADDRESS_WINDOW_SECONDS = 5, 15 * 60
MAX_WRONG_PER_SHARE, SHARE_WINDOW_SECONDS = 50, 3600
VIEW_WINDOW_SECONDS = 1800  # somebody who looks again within half an hour is still the same visitor
_KEY_SALT = "copilot.share.key"


# --- how often ---------------------------------------------------------------------------------------


def check_rate_limit(address: str, door: ShareEndpoint) -> None:
    """Counted before anything is looked up, so that a refusal says nothing about a token."""
    wait = rate_limits.count_request(
        f"share-{door}", hash_visitor_address(address), limit=REQUESTS_PER_MINUTE[door], seconds=60
    )
    if wait is not None:
        metrics.share_hits.labels(door=door, outcome="limited").inc()
        raise TooManyRequests("Too many requests. Please slow down.", retry_after_seconds=wait)


def hash_visitor_address(address: str) -> str:
    """Somebody's address as a salted hash; of IPv6 the network, for one person has very many of them."""
    with suppress(AddressValueError):  # then it is of IPv4, and one person's
        address = str(int(IPv6Address(address)) >> 64)
    return _salted_hash(address)


def _salted_hash(text: str) -> str:
    return salted_hmac("copilot.visitor", text, algorithm="sha256").hexdigest()[:32]


# --- reading -----------------------------------------------------------------------------------------


def _live_share_filter(prefix: str = "") -> Q:
    """Neither revoked nor run out nor emptied, of an owner who may still publish; by the database's clock."""
    stands = {"revoked_at": None, "purged_at": None, "owner__is_active": True}
    named = {f"{prefix}{name}": value for name, value in stands.items()}
    in_time = Q(**{f"{prefix}expires_at": None}) | Q(**{f"{prefix}expires_at__gt": Now()})
    return Q(**named) & in_time


def find_live_share(token: UUID) -> Share | None:
    """The share behind a token, locked or not."""
    return Share.objects.filter(_live_share_filter(), token=token).first()


def is_unlocked(share: Share, key: str) -> bool:
    """Whether this share may be read with this key, which may be empty."""
    if not share.password_hash:
        return True
    held = _read_key(key)
    return held is not None and held == _UnlockGrant(share.pk, share.password_version)


def load_payload(share: Share) -> SharePayload:
    return msgspec.convert(share.payload, SharePayload)


def find_shared_file(token: UUID, file_id: UUID, key: str) -> WorkspaceFile | None:
    """One query decides (S12): the token, the share, its owner, its lock, its list, the file."""
    held = _read_key(key)
    unlocked = Q(shared_in__share__password_hash="")
    if held is not None:
        unlocked |= Q(
            shared_in__share=held.share_id, shared_in__share__password_version=held.password_version
        )
    return WorkspaceFile.objects.filter(
        _live_share_filter("shared_in__share__"),
        unlocked,
        pk=file_id,
        shared_in__share__token=token,
        deleted_at=None,
        purged_at=None,
        scan__in=files.USABLE_SCANS,
    ).first()


def list_shared_files(share: Share) -> list[WorkspaceFile]:
    """What the share can hand out now, in the order of its payload."""
    listed = WorkspaceFile.objects.filter(
        shared_in__share=share, deleted_at=None, purged_at=None, scan__in=files.USABLE_SCANS
    )
    found = {str(one.pk): one for one in listed}
    return [found[one.id] for one in load_payload(share).files if one.id in found]


def record_view(share: Share, address: str) -> None:
    """Count a visitor about once; without Redis every look counts."""
    who = _salted_hash(f"{share.pk}:{hash_visitor_address(address)}")
    if rate_limits.count_request("share-view", who, limit=1, seconds=VIEW_WINDOW_SECONDS) is None:
        sharing.count_share_view(share)


# --- locks -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _UnlockGrant:
    """What a key opens: one share, as long as its password is the same."""

    share_id: UUID
    password_version: int


def unlock_share(token: UUID, password: str, address: str) -> str | None:
    """A key for whoever knows the password; None for a wrong one, and just as slowly for a share that is not there."""
    mine, everybodys = _salted_hash(f"{token}:{hash_visitor_address(address)}"), _salted_hash(str(token))
    _count_attempt("share-unlock-address", mine, MAX_WRONG_PER_ADDRESS, ADDRESS_WINDOW_SECONDS)
    _count_attempt("share-unlock", everybodys, MAX_WRONG_PER_SHARE, SHARE_WINDOW_SECONDS)
    share = find_live_share(token)
    known = share.password_hash if share is not None else ""
    right = check_password(password, known or _dummy_password_hash())
    if not right or share is None or not known:
        metrics.share_hits.labels(door="unlock", outcome="refused").inc()
        return None
    rate_limits.uncount_request("share-unlock-address", mine)
    rate_limits.uncount_request("share-unlock", everybodys)
    metrics.share_hits.labels(door="unlock", outcome="served").inc()
    return signing.dumps([str(share.pk), share.password_version], salt=_KEY_SALT)


def get_key_lifetime_seconds() -> int:
    return int(settings.SHARE_UNLOCK_HOURS * 3600)


def _count_attempt(name: str, who: str, limit: int, seconds: int) -> None:
    """Before the password is looked at: tries that come together are all counted, and a right one gives its back."""
    wait = rate_limits.count_request(name, who, limit=limit, seconds=seconds)
    if wait is not None:
        metrics.share_hits.labels(door="unlock", outcome="limited").inc()
        raise TooManyRequests("Too many wrong passwords. Please wait.", retry_after_seconds=wait)


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
    found = parse_uuid(str(share_id))
    return _UnlockGrant(found, int(version)) if found is not None else None
