"""Secrets at rest: encrypted under the installation's key, so that a copy of the database gives none away."""

from __future__ import annotations

import base64
from functools import cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings


class Unreadable(Exception):
    """Sealed under a key this installation no longer has."""


def seal(text: str) -> str:
    return _box(_keys()).encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    """What was sealed, also under a former SECRET_KEY that is still among the fallbacks."""
    try:
        return _box(_keys()).decrypt(sealed.encode()).decode()
    except InvalidToken as problem:
        raise Unreadable("sealed under a key this installation does not have") from problem


def reseal(sealed: str) -> str | None:
    """Seal the same text under the current SECRET_KEY; None when it is already. Raises `Unreadable`."""
    current, *_ = _keys()
    try:
        _box((current,)).decrypt(sealed.encode())
    except InvalidToken:
        return seal(unseal(sealed))
    return None


def _keys() -> tuple[str, ...]:
    return (settings.SECRET_KEY, *(str(key) for key in settings.SECRET_KEY_FALLBACKS))


@cache
def _box(keys: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(_derived(key)) for key in keys])


def _derived(key: str) -> bytes:
    derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"pilothouse sealing")
    return base64.urlsafe_b64encode(derivation.derive(key.encode()))
