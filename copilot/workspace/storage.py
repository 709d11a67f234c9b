"""The bytes of files: under which key they lie, and how they are written and read (S5)."""

from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Protocol
from uuid import UUID

from django.conf import settings
from django.core.files.base import File
from django.core.files.storage import Storage, storages
from django.utils import timezone

from copilot.errors import StorageUnavailable

CHUNK_BYTES = 64 * 1024

if TYPE_CHECKING:
    BytesFile = File[bytes]
else:
    BytesFile = File  # Django's own class takes no parameter while running


class Readable(Protocol):
    """Bytes that can be measured before they are read."""

    def read(self, size: int = -1, /) -> bytes: ...
    def seek(self, offset: int, whence: int = 0, /) -> int: ...
    def tell(self) -> int: ...


class _Hashing(BytesFile):
    """What Django's storages read from: counts and hashes what passes, and never yields more than `size`."""

    def __init__(self, stream: Readable, size: int) -> None:
        super().__init__(None, name="content")
        self._stream = stream
        self.size = size
        self.count = 0
        self.digest = hashlib.sha256()

    def chunks(self, chunk_size: int | None = None) -> Iterator[bytes]:
        while chunk := self._stream.read(min(CHUNK_BYTES, self.size - self.count)):
            self.count += len(chunk)
            self.digest.update(chunk)
            yield chunk


def measure(stream: Readable) -> int:
    stream.seek(0, io.SEEK_END)
    size = stream.tell()
    stream.seek(0)
    return size


def new_key(owner_id: int, file_id: UUID) -> str:
    """Nothing a person can name is in a key, and an account's prefix cannot be guessed from its id."""
    account = hmac.new(settings.SECRET_KEY.encode(), f"workspace:{owner_id}".encode(), "sha256").hexdigest()
    return f"ws/{account[:32]}/{timezone.now():%Y/%m}/{file_id}"


def write(key: str, stream: Readable, size: int) -> str:
    """Store exactly `size` bytes under a new key; answers their SHA-256."""
    hashing = _Hashing(stream, size)
    try:
        saved = _storage().save(key, hashing)
    except OSError as problem:
        raise StorageUnavailable from problem
    if saved != key or hashing.count != size:  # never under another name, never shorter than measured
        remove(saved)
        raise StorageUnavailable
    return hashing.digest.hexdigest()


def read(key: str) -> IO[bytes]:
    """The stream of an object; the caller closes it."""
    try:
        return _storage().open(key, "rb")
    except OSError as problem:
        raise StorageUnavailable from problem


def remove(key: str) -> None:
    """Delete an object; one that is not there is no problem."""
    try:
        _storage().delete(key)
    except OSError as problem:
        raise StorageUnavailable from problem


def _storage() -> Storage:
    return storages["workspace"]
