"""Encrypt secrets at rest under the installation's key, so that a copy of the database reveals none."""

from __future__ import annotations

import base64
from functools import cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings


class DecryptionFailed(Exception):
    """The text was encrypted under a key this installation no longer has."""


def encrypt_text(text: str) -> str:
    return _make_fernet(_secret_keys()).encrypt(text.encode()).decode()


def decrypt_text(sealed: str) -> str:
    """Decrypt, also with a former SECRET_KEY that is still among the fallbacks."""
    try:
        return _make_fernet(_secret_keys()).decrypt(sealed.encode()).decode()
    except InvalidToken as problem:
        raise DecryptionFailed("sealed under a key this installation does not have") from problem


def reencrypt_text(sealed: str) -> str | None:
    """Encrypt under the current SECRET_KEY; None if it already is. Raises DecryptionFailed."""
    current, *_ = _secret_keys()
    try:
        _make_fernet((current,)).decrypt(sealed.encode())
    except InvalidToken:
        return encrypt_text(decrypt_text(sealed))
    return None


def _secret_keys() -> tuple[str, ...]:
    return (settings.SECRET_KEY, *(str(key) for key in settings.SECRET_KEY_FALLBACKS))


@cache
def _make_fernet(keys: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(_derive_key(key)) for key in keys])


def _derive_key(key: str) -> bytes:
    derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"pilothouse sealing")
    return base64.urlsafe_b64encode(derivation.derive(key.encode()))
