"""Import sessions from documents and archives, all or nothing. The only writer of ImportRecord."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO
from uuid import UUID

from django.conf import settings
from django.db import transaction

from config.core.errors import Conflict, InvalidRequest, RequestRefused
from config.core.json_values import JSON
from copilot import metrics
from copilot.chat import announcements, imported_history, sessions
from copilot.exports import import_archive, import_mapping, import_parser
from copilot.exports.import_parser import InvalidDocument
from copilot.files import services as files
from copilot.files import storage
from copilot.models import ImportRecord, Session
from copilot.realtime.payloads import AttachmentPayload

IMPORT_ORIGIN = "import"
CHUNK_BYTES = 64 * 1024
_COUNTED_CODES = ("already_imported", "invalid_document")


def import_document(owner_id: int, content: IO[bytes], *, force: bool = False) -> Session:
    """Create a session from a document, or from an archive with a document and its files."""
    try:
        session = _import_document(owner_id, content, force=force)
    except RequestRefused as refusal:
        metrics.imports.labels(refusal.code if refusal.code in _COUNTED_CODES else "refused").inc()
        raise
    metrics.imports.labels("stored").inc()
    announcements.publish_session_change(session)
    return session


def _import_document(owner_id: int, content: IO[bytes], *, force: bool) -> Session:
    digest = _hash_content(content)
    _check_not_imported(owner_id, digest, force=force)
    head = content.read(4)
    content.seek(0)
    if import_archive.is_archive(head):
        with import_archive.open_archive(content) as archive:
            return _store_document(
                owner_id, digest, import_parser.parse_document(archive.read_document()), archive, force=force
            )
    return _store_document(
        owner_id, digest, import_parser.parse_document(_read_json(content)), None, force=force
    )


def _hash_content(content: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := content.read(CHUNK_BYTES):
        digest.update(chunk)
    content.seek(0)
    return digest.hexdigest()


def _read_json(content: IO[bytes]) -> bytes:
    limit = settings.IMPORT_JSON_MAX
    text = content.read(limit + 1)
    if len(text) > limit:
        raise InvalidDocument([f"$: has more than {limit:,} bytes"])
    return text


# --- Idempotency -------------------------------------------------------------------------------------


def _check_not_imported(owner_id: int, digest: str, *, force: bool) -> None:
    """Refuse a known document before any work. Concurrent imports are decided by the row."""
    known = ImportRecord.objects.filter(owner=owner_id, sha256=digest, session__deleted_at=None).first()
    if known is not None and not force:
        raise _make_already_imported_error(known.session_id)


def _make_already_imported_error(session_id: UUID) -> Conflict:
    return Conflict(
        "You have already imported this file.", code="already_imported", session_id=str(session_id)
    )


def _record_import(owner_id: int, digest: str, session: Session, *, force: bool) -> None:
    """Record the import. A concurrent import of the same document waits here and is refused."""
    key = {"owner_id": owner_id, "sha256": digest}
    _, created = ImportRecord.objects.get_or_create(**key, defaults={"session": session})
    if created:
        return
    known = ImportRecord.objects.select_for_update().get(**key)
    if not force and known.session.deleted_at is None:
        raise _make_already_imported_error(known.session_id)
    known.session = session
    known.save(update_fields=["session"])


# --- Store -------------------------------------------------------------------------------------------


def _store_document(
    owner_id: int,
    digest: str,
    document: import_parser.ImportedDocument,
    archive: import_archive.ImportArchive | None,
    *,
    force: bool,
) -> Session:
    with _delete_objects_on_failure() as stored, transaction.atomic():
        session = sessions.create_imported_session(
            owner_id, document.session.title, created_at=document.session.created_at
        )
        _record_import(owner_id, digest, session, force=force)
        names = _store_files(session, document, archive, stored)
        mapped = import_mapping.map_document(document, names)
        accepted = imported_history.insert_imported_messages(session.pk, mapped.rows, origin=IMPORT_ORIGIN)
        imported_history.insert_imported_turns(
            session.pk, mapped.turns, origin=IMPORT_ORIGIN, accepted=accepted
        )
    return session


@contextmanager
def _delete_objects_on_failure() -> Iterator[list[str]]:
    """Delete stored objects if the transaction fails, as the storage has no rollback."""
    with ExitStack() as undo:
        keys: list[str] = []
        undo.callback(_delete_objects, keys)
        yield keys
        undo.pop_all()


def _delete_objects(keys: list[str]) -> None:
    for key in keys:
        storage.delete_object(key)


def _store_files(
    session: Session,
    document: import_parser.ImportedDocument,
    archive: import_archive.ImportArchive | None,
    stored: list[str],
) -> import_mapping.ImportedFileNames:
    found: dict[str, AttachmentPayload] = {}
    for file in document.files:
        if archive is None or file.path is None or not archive.has_file(file.path):
            continue
        with archive.extract_file(file.path, size=file.size, sha256=file.sha256) as content:
            file_row = files.store_file(
                session.owner_id, name=file.name, content=content, source="import", session_id=session.pk
            )
        stored.append(file_row.storage_key)
        found[file.id.lower()] = files.to_attachment_view(file_row)
    missing = {file.id.lower(): file.name for file in document.files if file.id.lower() not in found}
    return import_mapping.ImportedFileNames(stored=found, missing=missing)


# --- History from the API ----------------------------------------------------------------------------

HISTORY_ORIGIN = "import"
NO_FILE_NAMES = import_mapping.ImportedFileNames(stored={}, missing={})


def import_history(
    owner_id: int,
    messages: Sequence[dict[str, JSON]],
    *,
    at: str,
    instructions: str,
    listed: bool,
    session_id: UUID | None = None,
) -> UUID:
    """Create a session whose past is given by the caller, as rows of ended turns.

    `messages` have the form of the export document, and are validated like one. An unlisted session serves
    one answer; its caller deletes it.
    """
    document = _parse_history(messages, at)
    if listed:
        session_id = sessions.create_session(owner_id, pk=session_id).pk
        if instructions:
            sessions.update_session_settings(owner_id, session_id, {"instructions": instructions})
    else:
        session_id = sessions.create_unlisted_session(owner_id, instructions)
    if document.messages:
        mapped = import_mapping.map_document(document, NO_FILE_NAMES)
        with transaction.atomic():
            accepted = imported_history.insert_imported_messages(
                session_id, mapped.rows, origin=HISTORY_ORIGIN
            )
            imported_history.insert_imported_turns(
                session_id, mapped.turns, origin=HISTORY_ORIGIN, accepted=accepted
            )
    return session_id


def _parse_history(messages: Sequence[dict[str, JSON]], at: str) -> import_parser.ImportedDocument:
    try:
        return import_parser.parse_document_value(
            {
                "schema": "pilothouse.conversation/1",
                "exported_at": at,
                "app_version": "",
                "session": {"title": "", "created_at": at, "model_tier": ""},
                "messages": list(messages),
                "files": [],
            }
        )
    except import_parser.InvalidDocument as invalid:
        raise InvalidRequest("The messages are not valid.", hint=invalid.hint) from invalid
