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

from copilot import metrics
from copilot.commands import as_uuid
from copilot.errors import TooMany
from copilot.live import counters
from copilot.models import Share, WorkspaceFile
from copilot.workspace import files, shares
from copilot.workspace.publication import Payload

Door = Literal["page", "file", "zip"]
PER_MINUTE: dict[Door, int] = {"page": 60, "file": 300, "zip": 6}
WRONG_PER_ADDRESS, ADDRESS_SECONDS = 5, 15 * 60
WRONG_PER_SHARE, SHARE_SECONDS = 50, 3600
VIEW_SECONDS = 1800  # somebody who looks again within half an hour is still the same visitor
_KEY = "copilot.share.key"


# --- how often ---------------------------------------------------------------------------------------


def admit(address: str, door: Door) -> None:
    """Counted before anything is looked up, so that a refusal says nothing about a token."""
    wait = counters.hit(f"share-{door}", visitor(address), limit=PER_MINUTE[door], seconds=60)
    if wait is not None:
        metrics.share_hits.labels(door=door, outcome="limited").inc()
        raise TooMany("Too many requests. Please slow down.", retry_after_seconds=wait)


def visitor(address: str) -> str:
    """Somebody's address as a salted hash; of IPv6 the network, for one person has very many of them."""
    with suppress(AddressValueError):  # then it is of IPv4, and one person's
        address = str(int(IPv6Address(address)) >> 64)
    return _hashed(address)


def _hashed(text: str) -> str:
    return salted_hmac("copilot.visitor", text, algorithm="sha256").hexdigest()[:32]


# --- reading -----------------------------------------------------------------------------------------


def _stands(prefix: str = "") -> Q:
    """Neither revoked nor run out nor emptied, of an owner who may still publish; by the database's clock."""
    stands = {"revoked_at": None, "purged_at": None, "owner__is_active": True}
    named = {f"{prefix}{name}": value for name, value in stands.items()}
    in_time = Q(**{f"{prefix}expires_at": None}) | Q(**{f"{prefix}expires_at__gt": Now()})
    return Q(**named) & in_time


def standing(token: UUID) -> Share | None:
    """The share behind a token, locked or not."""
    return Share.objects.filter(_stands(), token=token).first()


def is_open(share: Share, key: str) -> bool:
    """Whether this share may be read with this key, which may be empty."""
    if not share.password_hash:
        return True
    held = _held(key)
    return held is not None and held == _Held(share.pk, share.password_version)


def payload_of(share: Share) -> Payload:
    return msgspec.convert(share.payload, Payload)


def file(token: UUID, file_id: UUID, key: str) -> WorkspaceFile | None:
    """One query decides (S12): the token, the share, its owner, its lock, its list, the file."""
    held = _held(key)
    unlocked = Q(shared_in__share__password_hash="")
    if held is not None:
        unlocked |= Q(
            shared_in__share=held.share_id, shared_in__share__password_version=held.password_version
        )
    return WorkspaceFile.objects.filter(
        _stands("shared_in__share__"),
        unlocked,
        pk=file_id,
        shared_in__share__token=token,
        deleted_at=None,
        purged_at=None,
        scan__in=files.USABLE,
    ).first()


def files_of(share: Share) -> list[WorkspaceFile]:
    """What the share can hand out now, in the order of its payload."""
    listed = WorkspaceFile.objects.filter(
        shared_in__share=share, deleted_at=None, purged_at=None, scan__in=files.USABLE
    )
    found = {str(one.pk): one for one in listed}
    return [found[one.id] for one in payload_of(share).files if one.id in found]


def viewed(share: Share, address: str) -> None:
    """Count a visitor about once; without Redis every look counts."""
    who = _hashed(f"{share.pk}:{visitor(address)}")
    if counters.hit("share-view", who, limit=1, seconds=VIEW_SECONDS) is None:
        shares.count_view(share)


# --- locks -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Held:
    """What a key opens: one share, as long as its password is the same."""

    share_id: UUID
    password_version: int


def unlock(token: UUID, password: str, address: str) -> str | None:
    """A key for whoever knows the password; None for a wrong one, and just as slowly for a share that is not there."""
    mine, everybodys = _hashed(f"{token}:{visitor(address)}"), _hashed(str(token))
    _count_try("share-unlock-address", mine, WRONG_PER_ADDRESS, ADDRESS_SECONDS)
    _count_try("share-unlock", everybodys, WRONG_PER_SHARE, SHARE_SECONDS)
    share = standing(token)
    known = share.password_hash if share is not None else ""
    right = check_password(password, known or _nobodys_password())
    if not right or share is None or not known:
        metrics.share_hits.labels(door="unlock", outcome="refused").inc()
        return None
    counters.give_back("share-unlock-address", mine)
    counters.give_back("share-unlock", everybodys)
    metrics.share_hits.labels(door="unlock", outcome="served").inc()
    return signing.dumps([str(share.pk), share.password_version], salt=_KEY)


def key_seconds() -> int:
    return int(settings.SHARE_UNLOCK_HOURS * 3600)


def _count_try(name: str, who: str, limit: int, seconds: int) -> None:
    """Before the password is looked at: tries that come together are all counted, and a right one gives its back."""
    wait = counters.hit(name, who, limit=limit, seconds=seconds)
    if wait is not None:
        metrics.share_hits.labels(door="unlock", outcome="limited").inc()
        raise TooMany("Too many wrong passwords. Please wait.", retry_after_seconds=wait)


@cache
def _nobodys_password() -> str:
    return make_password("nobody has this password")


def _held(key: str) -> _Held | None:
    if not key:
        return None
    try:
        share_id, version = signing.loads(key, salt=_KEY, max_age=key_seconds())
    except signing.BadSignature:
        return None
    found = as_uuid(str(share_id))
    return _Held(found, int(version)) if found is not None else None
