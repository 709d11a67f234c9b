"""Protect secrets at rest: encrypt those that are needed again, hash those that are only compared.

Both use the installation's key, so that a copy of the database alone reveals none.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.utils.crypto import constant_time_compare, salted_hmac


class DecryptionFailed(Exception):
    """Raised for text that was encrypted under a key this installation no longer has."""


def encrypt_text(text: str) -> str:
    return _make_fernet(get_site_peppers()).encrypt(text.encode()).decode()


def decrypt_text(encrypted: str) -> str:
    """Decrypt, also with a former SECRET_KEY that is still among the fallbacks."""
    try:
        return _make_fernet(get_site_peppers()).decrypt(encrypted.encode()).decode()
    except InvalidToken as problem:
        raise DecryptionFailed("encrypted under a key that this installation does not have") from problem


def reencrypt_text(encrypted: str) -> str | None:
    """Encrypt under the current SECRET_KEY; None if it already is. Raises DecryptionFailed."""
    current, *_ = get_site_peppers()
    try:
        _make_fernet((current,)).decrypt(encrypted.encode())
    except InvalidToken:
        return encrypt_text(decrypt_text(encrypted))
    return None


@cache
def _make_fernet(keys: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(_derive_key(key)) for key in keys])


def _derive_key(key: str) -> bytes:
    derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"pilothouse sealing")
    return base64.urlsafe_b64encode(derivation.derive(key.encode()))


# --- Hashes of long random secrets ---
#
# The letter k, 7 hex digits that name the pepper, 56 hex digits of the hash. Plain 64 hex digits are the older form: it
# does not name its pepper, and is replaced when its secret is used.


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
