"""Stream several files as one ZIP archive without temporary files."""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import structlog
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from config.core.errors import NotFound, PayloadTooLarge, RequestRefused, StorageUnavailable
from config.core.text import build_archive_filename, build_content_disposition, make_unique_archive_names
from copilot import metrics
from copilot.files import downloads
from copilot.files import services as files
from copilot.files.quotas import MB
from copilot.files.storage import CHUNK_BYTES
from copilot.models import WorkspaceFile

log = structlog.get_logger(__name__)

SKIPPED_FILE_NAME = "SKIPPED.txt"
MAX_LARGEST_SHOWN = 5
_ENTRY_TIME = (1980, 1, 1, 0, 0, 0)  # constant, so that the same files make the same archive
_COMPRESSED_TYPES = ("image/", "audio/", "video/", "application/zip", "application/gzip", "application/pdf")
_COMPRESSIBLE_TYPES = ("image/svg+xml", "audio/wav")


@dataclass(frozen=True, kw_only=True)
class ZipEntry:
    """A file to pack, opened when it is its turn."""

    name: str
    size: int
    stored: bool  # already compressed
    open: Callable[[], IO[bytes]]


@dataclass(frozen=True, kw_only=True)
class ZipPlan:
    """The files to pack, and notes about those left out."""

    files: list[WorkspaceFile]
    skipped: list[str]


def build_zip_response(
    request: HttpRequest,
    found: Sequence[WorkspaceFile],
    *,
    title: str,
    absent: Sequence[str] = (),
    public: bool = False,
) -> HttpResponseBase:
    """Send the files as one archive, or a single file as it is. The caller has checked access."""
    plan = plan_archive(found, absent)
    if len(plan.files) == 1 and not plan.skipped:
        metrics.zips.labels("single").inc()
        return downloads.build_download_response(request, plan.files[0], public=public)
    parts = stream_zip(list_entries(plan.files), plan.skipped)
    first = next(parts)  # a storage that fails completely raises before the response has begun
    metrics.zips.labels("begun").inc()
    response = downloads.ChunkedResponse(itertools.chain([first], parts))
    disposition = build_content_disposition("attachment", build_archive_filename(title))
    return downloads.set_download_headers(response, downloads.ARCHIVE_POLICY, disposition, public=public)


def plan_archive(found: Sequence[WorkspaceFile], absent: Sequence[str] = ()) -> ZipPlan:
    """Decide by the rows what may be packed, before the first byte is sent."""
    plan = ZipPlan(files=[], skipped=[f"{name}: not available" for name in absent])
    for file in found:
        if (reason := _reason_to_skip(file)) is None:
            plan.files.append(file)
        else:
            plan.skipped.append(f"{file.name}: {reason}")
    if not plan.files:
        metrics.zips.labels("nothing").inc()
        raise NotFound
    _check_total(plan.files)
    return plan


def list_entries(packed: Sequence[WorkspaceFile], *, folder: str = "") -> list[ZipEntry]:
    """Return entries under names that are unique and safe; `folder` ends in a slash."""
    names = make_unique_archive_names(
        (file.name for file in packed), taken=() if folder else (SKIPPED_FILE_NAME,)
    )
    return [
        ZipEntry(
            name=folder + name,
            size=file.size_bytes,
            stored=_is_compressed(file.mime),
            open=lambda file=file: files.open_file(file),  # type: ignore[misc]
        )
        for name, file in zip(names, packed, strict=True)
    ]


def stream_zip(packed: Sequence[ZipEntry], skipped: Sequence[str] = ()) -> Generator[bytes]:
    """Yield the bytes of the archive. One that breaks off has no end record, so nobody takes it for complete."""
    notes, any_read = list(skipped), not packed
    sink = _OutputBuffer()
    with zipfile.ZipFile(
        sink, "w", allowZip64=True
    ) as archive:  # an end record written after an error is never sent
        for entry in packed:
            try:
                content = entry.open()
            except (RequestRefused, OSError) as problem:
                notes.append(_note_skipped(entry, problem))
                continue
            any_read = True
            yield from _pack_entry(archive, sink, entry, content, notes)
        if not any_read:
            raise StorageUnavailable
        if notes:
            text = "".join(f"{line}\n" for line in notes).encode()
            archive.writestr(_make_zip_info(SKIPPED_FILE_NAME, len(text), stored=False), text)
    yield sink.take_bytes()


# --- Entries -----------------------------------------------------------------------------------------


def _pack_entry(
    archive: zipfile.ZipFile, sink: _OutputBuffer, entry: ZipEntry, content: IO[bytes], notes: list[str]
) -> Iterator[bytes]:
    """Pack one entry. One that fails is removed from the archive's directory and noted."""
    info = _make_zip_info(entry.name, entry.size, stored=entry.stored)
    try:
        with content, archive.open(info, "w") as packing:
            for chunk in _read_exactly(content, entry.size):
                packing.write(chunk)
                if sink.size >= CHUNK_BYTES:
                    yield sink.take_bytes()
    except OSError as problem:
        archive.filelist.remove(info)
        del archive.NameToInfo[info.filename]
        notes.append(_note_skipped(entry, problem))
    yield sink.take_bytes()


def _read_exactly(content: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield as many bytes as the row says, or raise."""
    left = size
    while chunk := content.read(min(CHUNK_BYTES, left + 1)):
        if len(chunk) > left:
            raise OSError("the object is longer than it should be")
        left -= len(chunk)
        yield chunk
    if left:
        raise OSError("the object is shorter than it should be")


def _make_zip_info(name: str, size: int, *, stored: bool) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, date_time=_ENTRY_TIME)
    info.file_size = size  # so that zipfile knows whether it needs ZIP64
    info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    info.external_attr = 0o100644 << 16
    return info


def _note_skipped(entry: ZipEntry, problem: Exception) -> str:
    log.warning("archive_entry_skipped", problem=repr(problem.__cause__ or problem))
    return f"{entry.name}: could not be read"


class _OutputBuffer(io.RawIOBase):
    """A write-only buffer for zipfile that keeps only what was not yet taken."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._parts.append(bytes(data))
        self.size += len(data)
        return len(data)

    def take_bytes(self) -> bytes:
        whole = b"".join(self._parts)
        self._parts.clear()
        self.size = 0
        return whole


# --- Limits ------------------------------------------------------------------------------------------


def _reason_to_skip(file: WorkspaceFile) -> str | None:
    if file.scan not in files.USABLE_SCANS:
        return "not available"
    if file.size_bytes > settings.ZIP_FILE_MAX:
        return f"{file.size_bytes / MB:.1f} MB; files in an archive can be up to {settings.ZIP_FILE_MAX / MB:g} MB"
    return None


def _check_total(packed: Sequence[WorkspaceFile]) -> None:
    total = sum(file.size_bytes for file in packed)
    if total <= settings.ZIP_TOTAL_MAX and len(packed) <= settings.ZIP_FILES_MAX:
        return
    metrics.zips.labels("too_large").inc()
    largest = sorted(packed, key=lambda file: file.size_bytes, reverse=True)[:MAX_LARGEST_SHOWN]
    raise PayloadTooLarge(
        f"Archives can be up to {settings.ZIP_TOTAL_MAX / MB:g} MB and {settings.ZIP_FILES_MAX} files "
        f"(yours has {total / MB:.1f} MB in {len(packed)} files).",
        code="zip_too_large",
        total_bytes=total,
        limit_bytes=settings.ZIP_TOTAL_MAX,
        files=len(packed),
        limit_files=settings.ZIP_FILES_MAX,
        largest=[f"{file.name} ({file.size_bytes / MB:.1f} MB)" for file in largest],
    )


def _is_compressed(mime: str) -> bool:
    return mime.startswith(_COMPRESSED_TYPES) and mime not in _COMPRESSIBLE_TYPES
