"""Conversations on their way in, whole or not at all; the only writer of ImportRecord (S16)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO
from uuid import UUID

from django.conf import settings
from django.db import transaction

from copilot import history, metrics, sessions, turns
from copilot.errors import Conflict, Refused
from copilot.events import AttachmentView
from copilot.models import ImportRecord, Session
from copilot.workspace import files, incoming, placing, storage, unpacking
from copilot.workspace.incoming import InvalidDocument

ORIGIN = "import"
CHUNK_BYTES = 64 * 1024
_COUNTED = ("already_imported", "invalid_document")


def bring_in(owner_id: int, content: IO[bytes], *, force: bool = False) -> Session:
    """A new session of the owner's from a document, or from an archive with a document and its files."""
    try:
        session = _brought_in(owner_id, content, force=force)
    except Refused as refusal:
        metrics.imports.labels(refusal.code if refusal.code in _COUNTED else "refused").inc()
        raise
    metrics.imports.labels("stored").inc()
    sessions.publish_change(session)
    return session


def _brought_in(owner_id: int, content: IO[bytes], *, force: bool) -> Session:
    digest = _digest(content)
    _refuse_known(owner_id, digest, force=force)
    head = content.read(4)
    content.seek(0)
    if unpacking.is_archive(head):
        with unpacking.opened(content) as archive:
            return _store(owner_id, digest, incoming.read(archive.document()), archive, force=force)
    return _store(owner_id, digest, incoming.read(_json(content)), None, force=force)


def _digest(content: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := content.read(CHUNK_BYTES):
        digest.update(chunk)
    content.seek(0)
    return digest.hexdigest()


def _json(content: IO[bytes]) -> bytes:
    limit = settings.IMPORT_JSON_MAX
    text = content.read(limit + 1)
    if len(text) > limit:
        raise InvalidDocument([f"$: has more than {limit:,} bytes"])
    return text


# --- once --------------------------------------------------------------------------------------------


def _refuse_known(owner_id: int, digest: str, *, force: bool) -> None:
    """Before any work; that two come at once is settled by the row."""
    known = ImportRecord.objects.filter(owner=owner_id, sha256=digest, session__deleted_at=None).first()
    if known is not None and not force:
        raise _already(known.session_id)


def _already(session_id: UUID) -> Conflict:
    return Conflict("This document was imported before.", code="already_imported", session_id=str(session_id))


def _record(owner_id: int, digest: str, session: Session, *, force: bool) -> None:
    """One standing record a document: a second import at the same moment waits here, and is told of the first."""
    mine = {"owner_id": owner_id, "sha256": digest}
    _, made = ImportRecord.objects.get_or_create(**mine, defaults={"session": session})
    if made:
        return
    known = ImportRecord.objects.select_for_update().get(**mine)
    if not force and known.session.deleted_at is None:
        raise _already(known.session_id)
    known.session = session
    known.save(update_fields=["session"])


# --- all or nothing ----------------------------------------------------------------------------------


def _store(
    owner_id: int,
    digest: str,
    document: incoming.Document,
    archive: unpacking.Archive | None,
    *,
    force: bool,
) -> Session:
    with _bytes_go_too() as stored, transaction.atomic():
        session = sessions.create_imported(
            owner_id, document.session.title, created_at=document.session.created_at
        )
        _record(owner_id, digest, session, force=force)
        names = _files(session, document, archive, stored)
        placed = placing.placed(document, names)
        accepted = history.bring_in(session.pk, placed.rows, origin=ORIGIN)
        turns.record_past(session.pk, placed.turns, origin=ORIGIN, accepted=accepted)
    return session


@contextmanager
def _bytes_go_too() -> Iterator[list[str]]:
    """The database forgets by itself what failed; the storage has to be told."""
    with ExitStack() as undo:
        keys: list[str] = []
        undo.callback(_remove, keys)
        yield keys
        undo.pop_all()


def _remove(keys: list[str]) -> None:
    for key in keys:
        storage.remove(key)


def _files(
    session: Session, document: incoming.Document, archive: unpacking.Archive | None, stored: list[str]
) -> placing.Names:
    """Every file that came along becomes a new one of the owner's; an id of the document means nothing else here."""
    found: dict[str, AttachmentView] = {}
    for file in document.files:
        if archive is None or file.path is None or not archive.holds(file.path):
            continue
        with archive.taken_out(file.path, size=file.size, sha256=file.sha256) as content:
            kept = files.store(
                session.owner_id, name=file.name, content=content, source="import", session_id=session.pk
            )
        stored.append(kept.storage_key)
        found[file.id.lower()] = files.view(kept)
    gone = {file.id.lower(): file.name for file in document.files if file.id.lower() not in found}
    return placing.Names(stored=found, missing=gone)
