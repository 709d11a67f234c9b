"""Write, read, sign and list stored objects, and choose their keys."""

from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Iterator
from datetime import datetime
from typing import IO, TYPE_CHECKING, Protocol, runtime_checkable
from urllib.parse import quote, urlsplit
from uuid import UUID

from django.conf import settings
from django.core.files.base import File
from django.core.files.storage import FileSystemStorage, Storage, storages
from django.utils import timezone

from config.core.errors import StorageUnavailable

SIGNED_URL_SECONDS = 60  # a browser follows it at once
CHUNK_BYTES = 64 * 1024
STORAGE_ROOT = "ws/"

if TYPE_CHECKING:
    BytesFile = File[bytes]
else:
    BytesFile = File  # Django's class takes no type parameter at run time


class ReadableStream(Protocol):
    """A stream that can be measured before it is read."""

    def read(self, size: int = -1, /) -> bytes: ...
    def seek(self, offset: int, whence: int = 0, /) -> int: ...
    def tell(self) -> int: ...


@runtime_checkable
class SigningStorage(Protocol):
    """A storage whose objects browsers may fetch directly."""

    def signed_url(self, name: str, *, seconds: int, content_type: str, disposition: str) -> str | None: ...


@runtime_checkable
class ListingStorage(Protocol):
    """A storage that can list keys and their age efficiently."""

    def objects(self, prefix: str) -> Iterator[tuple[str, datetime]]: ...


class _HashingFile(BytesFile):
    """A file that counts and hashes what a storage reads from it, and never yields more than `size` bytes."""

    def __init__(self, stream: ReadableStream, size: int) -> None:
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


def measure_size(stream: ReadableStream) -> int:
    stream.seek(0, io.SEEK_END)
    size = stream.tell()
    stream.seek(0)
    return size


def get_owner_prefix(owner_id: int) -> str:
    """Return the prefix of an account's new keys, which cannot be guessed from its id."""
    return _make_prefix(owner_id, settings.SECRET_KEY)


def list_owner_prefixes(owner_id: int) -> list[str]:
    """Return all prefixes of an account, including those of a SECRET_KEY that is being rotated out."""
    return [_make_prefix(owner_id, str(key)) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]


def _make_prefix(owner_id: int, secret_key: str) -> str:
    account = hmac.new(secret_key.encode(), f"workspace:{owner_id}".encode(), "sha256").hexdigest()
    return f"{STORAGE_ROOT}{account[:32]}/"


def make_storage_key(owner_id: int, file_id: UUID) -> str:
    """Make a key that contains nothing a person chose."""
    return f"{get_owner_prefix(owner_id)}{timezone.now():%Y/%m}/{file_id}"


def write_object(key: str, stream: ReadableStream, size: int) -> str:
    """Store exactly `size` bytes under a new key, and return their SHA-256."""
    hashing = _HashingFile(stream, size)
    try:
        saved = _get_storage().save(key, hashing)
    except OSError as problem:
        raise StorageUnavailable from problem
    if saved != key or hashing.count != size:  # never under another name, never shorter than measured
        delete_object(saved)
        raise StorageUnavailable
    return hashing.digest.hexdigest()


def open_object(key: str) -> IO[bytes]:
    try:
        return _get_storage().open(key, "rb")
    except OSError as problem:
        raise StorageUnavailable from problem


def delete_object(key: str) -> None:
    """Delete an object. A missing object is not an error."""
    try:
        _get_storage().delete(key)
    except OSError as problem:
        raise StorageUnavailable from problem


def object_exists(key: str) -> bool:
    try:
        return _get_storage().exists(key)
    except OSError as problem:
        raise StorageUnavailable from problem


def list_objects(prefix: str = STORAGE_ROOT) -> Iterator[tuple[str, datetime]]:
    store = _get_storage()
    try:
        yield from (
            store.objects(prefix)
            if isinstance(store, ListingStorage)
            else _walk_folder(store, prefix.rstrip("/"))
        )
    except OSError as problem:
        raise StorageUnavailable from problem


def _walk_folder(store: Storage, folder: str) -> Iterator[tuple[str, datetime]]:
    try:
        folders, names = store.listdir(folder)
    except FileNotFoundError:
        return
    for name in sorted(names):
        yield f"{folder}/{name}", store.get_modified_time(f"{folder}/{name}")
    for name in sorted(folders):
        yield from _walk_folder(store, f"{folder}/{name}")


def make_signed_url(key: str, *, content_type: str, disposition: str) -> str | None:
    """Return a URL where browsers can fetch the object directly for a minute, or None. May raise OSError."""
    store = _get_storage()
    if not isinstance(store, SigningStorage):
        return None
    seconds = SIGNED_URL_SECONDS
    url = store.signed_url(key, seconds=seconds, content_type=content_type, disposition=disposition)
    parts = urlsplit(url or "")
    is_elsewhere = (
        parts.scheme in {"http", "https"} and f"{parts.scheme}://{parts.netloc}" != settings.SITE_URL
    )
    return url if is_elsewhere and parts.netloc else None


def get_accelerated_path(key: str) -> str | None:
    store = _get_storage()
    if (
        not settings.WORKSPACE_ACCEL_PREFIX
        or not isinstance(store, FileSystemStorage)
        or not store.exists(key)
    ):
        return None
    return f"{settings.WORKSPACE_ACCEL_PREFIX.rstrip('/')}/{quote(key)}"


def _get_storage() -> Storage:
    return storages["workspace"]
