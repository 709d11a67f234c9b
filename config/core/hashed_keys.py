"""Hashes of long random secrets (API keys), peppered with the site's key in a form that tells which key was used.

`k`, 7 hex digits that name the pepper, 56 hex digits of the hash. Plain 64 hex digits are the older form: it does not
tell, and is replaced when its secret is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from django.conf import settings
from django.utils.crypto import constant_time_compare, salted_hmac


def get_site_peppers() -> tuple[str, ...]:
    """Return the current SECRET_KEY, then those being rotated out."""
    return (str(settings.SECRET_KEY), *(str(key) for key in settings.SECRET_KEY_FALLBACKS))


def hash_secret(salt: str, secret: str, pepper: str) -> str:
    return f"{_get_pepper_prefix(salt, pepper)}{_compute_digest(salt, secret, pepper)[:56]}"


def find_pepper(salt: str, secret: str, stored: str, peppers: Sequence[str]) -> str | None:
    """Return the pepper under which `stored` is the hash of `secret`; every refusal costs the same."""
    found: str | None = None
    for pepper in reversed(peppers):
        matches = constant_time_compare(hash_secret(salt, secret, pepper), stored)
        if matches | constant_time_compare(_compute_digest(salt, secret, pepper), stored):
            found = pepper
    return found


def is_current_hash(salt: str, stored: str, pepper: str) -> bool:
    """Tell whether `stored` was made under this pepper; the older form never counts as such."""
    return stored.startswith(_get_pepper_prefix(salt, pepper))


@cache
def _get_pepper_prefix(salt: str, pepper: str) -> str:
    return f"k{_compute_digest(salt, 'which pepper', pepper)[:7]}"


def _compute_digest(salt: str, secret: str, pepper: str) -> str:
    return salted_hmac(salt, secret, secret=pepper, algorithm="sha256").hexdigest()
