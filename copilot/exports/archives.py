"""Write archives of a session with its files, or of a whole account."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.contrib.auth.models import User

from billing.selectors import credit_statements
from config.core.errors import PayloadTooLarge, StorageUnavailable
from config.core.text import make_unique_archive_names
from copilot import signals
from copilot.exports.session_reader import ExportFormat, ExportOptions, SessionExport
from copilot.files import services as files
from copilot.files.storage import CHUNK_BYTES
from copilot.models import Agent, McpServer, MemoryItem, Preferences, Schedule, Session, Share, WorkspaceFile
from copilot.realtime.payloads import format_timestamp

ACCOUNT_SCHEMA = "pilothouse.account/1"

AccountValues = dict[str, Any]  # JSON values; times are serialised when written


def describe_account(owner_id: int) -> AccountValues:
    """Return everything an account holds besides its sessions, without secrets or working share links.

    Apps that copilot does not import add theirs by the signal `account_exporting`.
    """
    values: AccountValues = credit_statements.export_credits(owner_id)
    for _receiver, part in signals.account_exporting.send(sender=User, user_id=owner_id):
        values |= part  # type: ignore[arg-type]  # the stubs expect receivers to return text
    user = User.objects.get(pk=owner_id)
    preferences = Preferences.objects.filter(owner=owner_id).values("timezone", "instructions").first()
    return values | {
        "schema": ACCOUNT_SCHEMA,
        "account": {
            "email": user.email,
            "name": user.get_username(),
            "joined_at": format_timestamp(user.date_joined),
        },
        "preferences": preferences or {},
        "memories": _list_rows(MemoryItem.objects.filter(owner=owner_id).values("text", "created_at")),
        "agents": _list_rows(Agent.objects.visible_to(owner_id).values("name", "description", "version")),
        "schedules": _list_rows(
            Schedule.objects.filter(owner=owner_id, cancelled_at=None).values(
                "name", "prompt", "cron", "timezone", "created_at"
            )
        ),
        "mcp_servers": _list_rows(
            McpServer.objects.filter(owner=owner_id).values("name", "url", "created_at")
        ),
        "shares": _list_rows(
            Share.objects.filter(owner=owner_id).values("kind", "created_at", "expires_at", "revoked_at")
        ),
        "files": _list_files(owner_id),
    }


def _list_files(owner_id: int) -> list[AccountValues]:
    own = WorkspaceFile.objects.available().filter(owner=owner_id)
    listed = own.exclude(source=WorkspaceFile.Source.TOOL_OUTPUT).order_by("created_at", "id")
    return [dict(row) for row in listed.values("id", "name", "mime", "size_bytes", "sha256", "created_at")]


def _list_rows(rows: Any) -> list[AccountValues]:
    return list(rows.order_by("pk"))


FIXED_ENTRY_TIME = (1980, 1, 1, 0, 0, 0)  # the same session makes the same archive
DOCUMENT_NAME = "conversation"
SKIPPED_FILE_NAME = "SKIPPED.txt"
MAX_COMPRESSION_RATIO = 25  # an import refuses entries that grow a hundred times
# Writes a document, given the paths of its files in the archive.
DocumentWriter = Callable[[dict[UUID, str]], Iterable[bytes]]
ALL_PARTS = ExportOptions(format="json", reasoning=True, tools=True)


def write_session_archive(target: IO[bytes], conversation: SessionExport, kind: ExportFormat) -> None:
    named = conversation.list_named_files()
    available = [file for file in named if _is_available(file)]
    write_archive(
        target, f"{DOCUMENT_NAME}.{kind}", available, lambda paths: conversation.iter_chunks(named, paths)
    )


def write_archive(
    target: IO[bytes], name: str, wanted: Sequence[WorkspaceFile], pieces: DocumentWriter
) -> None:
    """Write the files first: the document names only those that are in the archive."""
    with (
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive,
        tempfile.TemporaryFile(prefix="pilothouse-export-") as document,
    ):
        paths, skipped = _add_files(archive, wanted)
        document.writelines(pieces(paths))
        _copy_into_archive(archive, name, document)
        if skipped:
            archive.writestr(_make_zip_info(SKIPPED_FILE_NAME), "".join(f"{line}\n" for line in skipped))


def write_account_archive(target: IO[bytes], owner_id: int) -> None:
    """Write every session as a document, and a list of everything else. Files are downloaded one by one."""
    sessions = Session.objects.visible_to(owner_id).order_by("created_at", "pk")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        archive.writestr(_make_zip_info("account.json"), msgspec.json.encode(describe_account(owner_id)))
        for number, session in enumerate(sessions.iterator(), start=1):
            conversation = SessionExport(session, ALL_PARTS)
            path = f"conversations/{number:05d} {conversation.get_file_name('json')}"
            with archive.open(_make_zip_info(path), "w") as document:
                document.writelines(conversation.iter_chunks(conversation.list_named_files()))


def _is_available(file: WorkspaceFile) -> bool:
    return file.deleted_at is None and file.purged_at is None and file.scan in files.USABLE_SCANS


def _add_files(
    archive: zipfile.ZipFile, wanted: Sequence[WorkspaceFile]
) -> tuple[dict[UUID, str], list[str]]:
    small = [file for file in wanted if file.size_bytes <= settings.ZIP_FILE_MAX]
    skipped = [
        f"{file.name}: larger than {settings.ZIP_FILE_MAX} bytes" for file in wanted if file not in small
    ]
    total = sum(file.size_bytes for file in small)
    if total > settings.ZIP_TOTAL_MAX or len(small) > settings.ZIP_FILES_MAX:
        raise PayloadTooLarge(
            f"The files of this chat are too large to export: {total:,} bytes in {len(small)} files.",
            code="zip_too_large",
        )
    paths: dict[UUID, str] = {}
    for file, name in zip(small, make_unique_archive_names(file.name for file in small), strict=True):
        try:
            _add_file(archive, f"files/{name}", file)
        except StorageUnavailable:
            skipped.append(f"{file.name}: could not be read")
        else:
            paths[file.pk] = f"files/{name}"
    return paths, skipped


def _add_file(archive: zipfile.ZipFile, path: str, file: WorkspaceFile) -> None:
    with files.open_file(file) as source:
        try:
            _copy_into_archive(archive, path, source)
        except OSError as problem:
            raise StorageUnavailable from problem


def _copy_into_archive(archive: zipfile.ZipFile, path: str, source: IO[bytes]) -> None:
    """Copy one entry. One that fails is removed from the archive's directory."""
    entry = _make_zip_info(path, stored=_compresses_too_well(source))
    source.seek(0)
    try:
        with archive.open(entry, "w") as packing:
            shutil.copyfileobj(source, packing)
    except OSError:
        archive.filelist.remove(entry)
        del archive.NameToInfo[entry.filename]
        raise


def _compresses_too_well(source: IO[bytes]) -> bool:
    """Test with a fast compression whether an import would take the entry for a bomb."""
    source.seek(0)
    packer, size, packed = zlib.compressobj(1), 0, 0
    while chunk := source.read(CHUNK_BYTES):
        size += len(chunk)
        packed += len(packer.compress(chunk))
    return size > MAX_COMPRESSION_RATIO * (packed + len(packer.flush()))


def _make_zip_info(path: str, *, stored: bool = False) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(path, FIXED_ENTRY_TIME)
    entry.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    return entry
