"""Open untrusted archives safely: sizes are counted while unpacking, never trusted."""

from __future__ import annotations

import hashlib
import io
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

from django.conf import settings

from copilot.exports.import_parser import InvalidDocument

MAX_ENTRIES = 1_000
MAX_RATIO = 100  # ordinary text never compresses further; bombs do
CHUNK_BYTES = 64 * 1024
# At once: the directory of an archive is read whole and takes ten times as much memory as objects.
MAX_READ_BYTES = 2**20
SUPPORTED_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
UNPACK_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,
    NotImplementedError,
    ValueError,
)


@dataclass
class ImportArchive:
    """An archive with safe names. Everything extracted counts against one limit."""

    _zip: zipfile.ZipFile
    _entries: dict[str, zipfile.ZipInfo]
    _left: int = field(default_factory=lambda: settings.IMPORT_ZIP_MAX)

    def read_document(self) -> bytes:
        found = [name for name in self._entries if name.endswith(".json") and "/" not in name]
        if len(found) != 1:
            raise InvalidDocument([f"$: the archive must hold one JSON document; it holds {len(found)}"])
        pieces: list[bytes] = []
        for chunk in self._iter_chunks(found[0], settings.IMPORT_JSON_MAX):
            pieces.append(chunk)
        return b"".join(pieces)

    def has_file(self, path: str) -> bool:
        return path in self._entries

    @contextmanager
    def extract_file(self, path: str, *, size: int, sha256: str) -> Iterator[IO[bytes]]:
        """Extract a file to disk and verify it against the document. It is deleted when the context ends."""
        with tempfile.TemporaryFile(prefix="pilothouse-import-") as target:
            digest, count = hashlib.sha256(), 0
            for chunk in self._iter_chunks(path, size):
                digest.update(chunk)
                count += len(chunk)
                target.write(chunk)
            if count != size or digest.hexdigest() != sha256:
                raise InvalidDocument([f"{path[:200]}: is not the file that the document describes"])
            target.seek(0)
            yield target

    def _iter_chunks(self, path: str, most: int) -> Iterator[bytes]:
        """Yield the actual bytes, whatever the header claims, and refuse more than `most`."""
        entry = self._entries[path]
        count = 0
        try:
            with self._zip.open(entry) as source:
                while chunk := source.read(CHUNK_BYTES):
                    count += len(chunk)
                    self._left -= len(chunk)
                    _check_growth(path, count, min(most, self._left + count), entry)
                    yield chunk
        except UNPACK_ERRORS as problem:
            raise InvalidDocument([f"{path[:200]}: cannot be unpacked"]) from problem


def _check_growth(path: str, count: int, most: int, entry: zipfile.ZipInfo) -> None:
    if count > most:
        raise InvalidDocument([f"{path[:200]}: is larger than it may be"])
    if count > CHUNK_BYTES and count > MAX_RATIO * max(entry.compress_size, 1):
        raise InvalidDocument([f"{path[:200]}: grows more than {MAX_RATIO} times"])


class _BoundedReader:
    """Refuse reads of an archive that are too large."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content
        self._size = content.seek(0, io.SEEK_END)
        self.seek, self.tell, self.seekable, self.close = (
            content.seek,
            content.tell,
            content.seekable,
            content.close,
        )

    def read(self, size: int = -1, /) -> bytes:
        left = self._size - self._content.tell()
        if (left if size < 0 else min(size, left)) > MAX_READ_BYTES:
            raise ValueError("the directory of the archive is too large")
        return self._content.read(size)


@contextmanager
def open_archive(content: IO[bytes]) -> Iterator[ImportArchive]:
    """Refuse the whole archive if any name or claim is hostile. Nothing is unpacked in advance."""
    try:
        archive = zipfile.ZipFile(_BoundedReader(content))
    except UNPACK_ERRORS as problem:
        raise InvalidDocument(["$: is not a valid ZIP archive"]) from problem
    with archive:
        yield ImportArchive(archive, _check_entries(archive.infolist()))


def is_archive(head: bytes) -> bool:
    return head.startswith(b"PK\x03\x04")


def _check_entries(entries: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    if len(entries) > MAX_ENTRIES:
        raise InvalidDocument([f"$: the archive has more than {MAX_ENTRIES:,} entries"])
    problems = [problem for entry in entries if (problem := _find_entry_problem(entry))]
    names = [entry.filename for entry in entries]
    if len(set(names)) != len(names):
        problems.append("$: the archive contains a name twice")
    total, packed = sum(entry.file_size for entry in entries), sum(entry.compress_size for entry in entries)
    if total > settings.IMPORT_ZIP_MAX or (total > CHUNK_BYTES and total > MAX_RATIO * max(packed, 1)):
        problems.append(f"$: unpacked, the archive would have {total:,} bytes")
    if problems:
        raise InvalidDocument(problems[:10])
    return {entry.filename: entry for entry in entries if not entry.is_dir()}


def _find_entry_problem(entry: zipfile.ZipInfo) -> str:
    name = entry.filename
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\x00" in entry.orig_filename:
        return f"{name[:200]!r}: leads out of the archive"
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return f"{name[:200]!r}: is not a regular file"
    if entry.flag_bits & 0x1 or entry.compress_type not in SUPPORTED_COMPRESSION:
        return f"{name[:200]!r}: uses encryption or an unsupported compression"
    return ""
