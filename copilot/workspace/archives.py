"""A conversation with its files as one archive, written to disk within the limits of S13 (S15)."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import IO
from uuid import UUID

import msgspec
from django.conf import settings

from copilot.errors import StorageUnavailable, TooLarge
from copilot.models import Session, WorkspaceFile
from copilot.names import entry_names
from copilot.workspace import belongings, files
from copilot.workspace.reading import Conversation, Format, Wanted
from copilot.workspace.storage import CHUNK_BYTES

FIXED_TIME = (1980, 1, 1, 0, 0, 0)  # the same conversation is the same archive
DOCUMENT = "conversation"
SKIPPED = "SKIPPED.txt"
SHRINKS_TOO_FAR = 25  # times; what grows a hundred times when it is unpacked, an import takes for a bomb
Pieces = Callable[[dict[UUID, str]], Iterable[bytes]]  # a document, when it is known where its files lie
EVERYTHING = Wanted(format="json", reasoning=True, tools=True)


def write(target: IO[bytes], conversation: Conversation, kind: Format) -> None:
    named = conversation.named()
    there = [file for file in named if _is_there(file)]
    pack(target, f"{DOCUMENT}.{kind}", there, lambda paths: conversation.pieces(named, paths))


def pack(target: IO[bytes], name: str, wanted: Sequence[WorkspaceFile], pieces: Pieces) -> None:
    """Files first: the document names only those that are in the archive."""
    with (
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive,
        tempfile.TemporaryFile(prefix="pilothouse-export-") as document,
    ):
        paths, skipped = _pack(archive, wanted)
        document.writelines(pieces(paths))
        _copy(archive, name, document)
        if skipped:
            archive.writestr(_entry(SKIPPED), "".join(f"{line}\n" for line in skipped))


def write_everything(target: IO[bytes], owner_id: int) -> None:
    """Every conversation as a document of its own, and a list of all else; the files themselves are fetched one by one."""
    sessions = Session.objects.filter(owner=owner_id, deleted_at=None).order_by("created_at", "pk")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        archive.writestr(_entry("account.json"), msgspec.json.encode(belongings.described(owner_id)))
        for number, session in enumerate(sessions.iterator(), start=1):
            conversation = Conversation(session, EVERYTHING)
            path = f"conversations/{number:05d} {conversation.name('json')}"
            with archive.open(_entry(path), "w") as document:
                document.writelines(conversation.pieces(conversation.named()))


def _is_there(file: WorkspaceFile) -> bool:
    return file.deleted_at is None and file.purged_at is None and file.scan in files.USABLE


def _pack(archive: zipfile.ZipFile, wanted: Sequence[WorkspaceFile]) -> tuple[dict[UUID, str], list[str]]:
    """Where each file lies now, and why others are missing."""
    small = [file for file in wanted if file.size_bytes <= settings.ZIP_FILE_MAX]
    skipped = [
        f"{file.name}: larger than {settings.ZIP_FILE_MAX} bytes" for file in wanted if file not in small
    ]
    total = sum(file.size_bytes for file in small)
    if total > settings.ZIP_TOTAL_MAX or len(small) > settings.ZIP_FILES_MAX:
        raise TooLarge(
            f"The files of this conversation have {total} bytes in {len(small)} files.", code="zip_too_large"
        )
    paths: dict[UUID, str] = {}
    for file, name in zip(small, entry_names(file.name for file in small), strict=True):
        try:
            _add(archive, f"files/{name}", file)
        except StorageUnavailable:
            skipped.append(f"{file.name}: could not be read")
        else:
            paths[file.pk] = f"files/{name}"
    return paths, skipped


def _add(archive: zipfile.ZipFile, path: str, file: WorkspaceFile) -> None:
    with files.open(file) as source:
        try:
            _copy(archive, path, source)
        except OSError as problem:
            raise StorageUnavailable from problem


def _copy(archive: zipfile.ZipFile, path: str, source: IO[bytes]) -> None:
    """What breaks off on its way stays out of the archive's directory, where readers look."""
    entry = _entry(path, stored=_shrinks_too_far(source))
    source.seek(0)
    try:
        with archive.open(entry, "w") as packing:
            shutil.copyfileobj(source, packing)
    except OSError:
        archive.filelist.remove(entry)
        del archive.NameToInfo[entry.filename]
        raise


def _shrinks_too_far(source: IO[bytes]) -> bool:
    """Tried quickly: our own archive must come in again (A-S15.1)."""
    source.seek(0)
    packer, size, packed = zlib.compressobj(1), 0, 0
    while chunk := source.read(CHUNK_BYTES):
        size += len(chunk)
        packed += len(packer.compress(chunk))
    return size > SHRINKS_TOO_FAR * (packed + len(packer.flush()))


def _entry(path: str, *, stored: bool = False) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(path, FIXED_TIME)
    entry.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    return entry
