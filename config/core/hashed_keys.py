"""Keys that callers send with every request: shown once, stored as a hash, and found by a random prefix."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Self, TypeVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from config.core.encryption import find_pepper, get_site_peppers, hash_secret, is_current_hash

LAST_USED_INTERVAL = timedelta(minutes=1)  # a write per request would be wasteful
_PREFIX_ALPHABET = string.ascii_lowercase + string.digits

K = TypeVar("K", bound="HashedKey")


class HashedKeyQuerySet(models.QuerySet[K]):
    def unrevoked(self) -> Self:
        return self.filter(revoked_at=None)

    def active(self) -> Self:
        return self.unrevoked().exclude(expires_at__lte=Now())


class HashedKey(models.Model):
    """The columns of every kind of key."""

    prefix = models.CharField(max_length=10, unique=True, editable=False)
    secret_hash = models.CharField(max_length=64, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        abstract = True

    def is_valid(self) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > timezone.now())


@dataclass(frozen=True)
class GeneratedKey:
    """A key at the only moment its secret is known."""

    token: str
    prefix: str
    secret_hash: str


@dataclass(frozen=True)
class KeyFormat:
    """One kind of key: `<name>_<prefix>_<secret>`, hashed with a salt of its own."""

    name: str
    salt: str
    get_peppers: Callable[[], tuple[str, ...]] = get_site_peppers

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(rf"{self.name}_([a-z0-9]{{10}})_([A-Za-z0-9_-]{{43}})", re.ASCII)

    def generate_key(self) -> GeneratedKey:
        prefix = "".join(secrets.choice(_PREFIX_ALPHABET) for _ in range(10))
        secret = secrets.token_urlsafe(32)
        return GeneratedKey(f"{self.name}_{prefix}_{secret}", prefix, self._hash_secret(secret))

    def verify_key(
        self, rows: models.QuerySet[K], token: str, *, accepts: Callable[[K], bool] = HashedKey.is_valid
    ) -> K | None:
        """Return the row of a valid key, or None. Every refusal costs the same comparison."""
        shape = self._pattern.fullmatch(token)
        prefix, secret = shape.groups() if shape else ("", "")
        row = rows.filter(prefix=prefix).first() if shape else None
        pepper = find_pepper(self.salt, secret, row.secret_hash if row else "0" * 64, self.get_peppers())
        if row is None or pepper is None or not accepts(row):
            return None
        if not self._is_current(row.secret_hash):
            rows.filter(pk=row.pk, secret_hash=row.secret_hash).update(secret_hash=self._hash_secret(secret))
        if row.last_used_at is None or timezone.now() - row.last_used_at >= LAST_USED_INTERVAL:
            stale = Q(last_used_at=None) | Q(last_used_at__lte=Now() - LAST_USED_INTERVAL)
            rows.filter(stale, pk=row.pk).update(last_used_at=Now())
        return row

    def count_old_hashes(self, rows: models.QuerySet[K]) -> int:
        """Count keys whose hash was made with another pepper, or in the older form."""
        hashes = rows.values_list("secret_hash", flat=True).iterator()
        return sum(not self._is_current(stored) for stored in hashes)

    def _hash_secret(self, secret: str) -> str:
        return hash_secret(self.salt, secret, self.get_peppers()[0])

    def _is_current(self, secret_hash: str) -> bool:
        return is_current_hash(self.salt, secret_hash, self.get_peppers()[0])
