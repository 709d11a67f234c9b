"""Import sessions from documents and archives, all or nothing. The only writer of ImportRecord."""

from __future__ import annotations

import hashlib
import io
import re
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import IO, assert_never
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction

from config.core.errors import Conflict, InvalidRequest, RequestRefused
from config.core.json_values import JSON
from config.core.text import make_storable
from copilot import metrics
from copilot.chat import announcements, sessions
from copilot.chat.messages import (
    ImportedMessage,
    ImportedTurn,
    build_result_data,
    insert_imported_messages,
    insert_imported_turns,
)
from copilot.chat.prompt_tags import strip_server_tags
from copilot.exports import import_parser
from copilot.exports.import_parser import (
    ImportedAssistantPart,
    ImportedDocument,
    ImportedReasoningPart,
    ImportedSummaryPart,
    ImportedToolCallPart,
    ImportedToolResultPart,
    ImportedUserPart,
    InvalidDocument,
)
from copilot.exports.import_parser import ImportedMessage as ParsedMessage
from copilot.files import services as files
from copilot.files import storage
from copilot.models import ImportRecord, Session
from copilot.realtime.payloads import AttachmentPayload

MAX_ENTRIES = 1_000
MAX_JSON_BYTES = 20 * 2**20  # of the document, alone or in the archive
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
        for chunk in self._iter_chunks(found[0], MAX_JSON_BYTES):
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


MAX_PREVIEW_CHARACTERS = 4_000  # as for our own results
UNANSWERED_CALL_TEXT = "No result: the chat was exported before the call finished."
_URI = re.compile(
    r"workspace://(?P<id>[0-9a-z-]{1,128})"
    r"(?P<rest>(?:/(?P<name>[^\s()\[\]<>\"'#]{0,254}[^\s()\[\]<>\"'#.,;:!?]))?(?:#[\w./+-]{0,126}\w)?)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class MappedDocument:
    rows: list[ImportedMessage]
    turns: list[ImportedTurn]


@dataclass(frozen=True, kw_only=True)
class ImportedFileNames:
    """The document's files: the stored copies, and the names of those that are missing."""

    stored: Mapping[str, AttachmentPayload]
    missing: Mapping[str, str]  # id → name

    def rewrite_references(self, text: str) -> str:
        """Replace every file reference, so that no id of the document survives."""
        return _URI.sub(self._replace_reference, text)

    def _replace_reference(self, found: re.Match[str]) -> str:
        file_id = found["id"].lower()
        if (file := self.stored.get(file_id)) is not None:
            return f"workspace://{file.file_id}{found['rest']}"
        return describe_missing_file(self.missing.get(file_id) or found["name"] or "file")


def describe_missing_file(name: str) -> str:
    return f"[missing file: {name}]"


def map_document(document: ImportedDocument, names: ImportedFileNames) -> MappedDocument:
    answered = {
        part.call_id
        for message in document.messages
        for part in message.parts
        if isinstance(part, ImportedToolResultPart)
    }
    mapper = _DocumentMapper(names, document.session.model_tier, answered)
    for message in document.messages:
        mapper.add_message(message)
    return MappedDocument(rows=mapper.rows, turns=mapper.turns)


@dataclass
class _DocumentMapper:
    names: ImportedFileNames
    tier: str
    answered: set[str]  # calls that have a result anywhere in the document
    rows: list[ImportedMessage] = field(default_factory=list)
    turns: list[ImportedTurn] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # the last row of each message
    open_calls: dict[str, tuple[str, str]] = field(default_factory=dict)  # their id → our id and the tool
    was_answered: bool = False  # the next user message begins a turn

    def add_message(self, message: ParsedMessage) -> None:
        self._begin_turn(message)
        for number, part in enumerate(message.parts):
            self._add_part(message, part, first=number == 0)
        self._close_calls()
        self.ends.append(len(self.rows))

    def _begin_turn(self, message: ParsedMessage) -> None:
        """Begin a turn at a user message after an answer. Messages between calls belong to the running turn."""
        is_user_turn = message.role == "user" and not self.open_calls
        if not self.turns or (is_user_turn and self.was_answered):
            self.turns.append(
                ImportedTurn(id=uuid4(), began_at=message.created_at, ended_at=message.created_at)
            )
            self.was_answered = False
        else:
            ended = max(self.turns[-1].ended_at, message.created_at)
            self.turns[-1] = replace(self.turns[-1], ended_at=ended)
        self.was_answered = self.was_answered or message.role == "assistant"

    def _add_part(
        self,
        message: ParsedMessage,
        part: ImportedUserPart
        | ImportedAssistantPart
        | ImportedReasoningPart
        | ImportedSummaryPart
        | ImportedToolCallPart
        | ImportedToolResultPart,
        *,
        first: bool,
    ) -> None:
        match part:
            case ImportedUserPart():
                self._add_user_row(message, part, first=first)
            case ImportedAssistantPart() | ImportedReasoningPart():
                self._add_row(message, part.type, self._rewrite_text(part.text))
            case ImportedSummaryPart():
                anchor = self.ends[min(part.through, len(self.ends)) - 1] if part.through and self.ends else 0
                self._add_row(message, "summary", self._rewrite_text(part.text), data={"anchor": anchor})
            case ImportedToolCallPart():
                self._add_call(message, part)
            case ImportedToolResultPart():
                self._add_result(message.created_at, part)
            case unreachable:
                assert_never(unreachable)

    def _add_user_row(self, message: ParsedMessage, part: ImportedUserPart, *, first: bool) -> None:
        text = self._rewrite_text(part.text)
        wanted = message.attachments if first else []
        missing_names = [
            self.names.missing.get(file_id.lower(), "file")
            for file_id in wanted
            if file_id.lower() not in self.names.stored
        ]
        row = self._make_row(
            message.created_at,
            "user",
            "\n\n".join([text, *map(describe_missing_file, missing_names)]).strip("\n"),
        )
        self.rows.append(
            replace(
                row,
                author=message.author,
                branch=message.branch,
                tier=self.tier,
                mid_turn=bool(self.open_calls),
                attachments=[
                    self.names.stored[file_id.lower()]
                    for file_id in wanted
                    if file_id.lower() in self.names.stored
                ],
            )
        )

    def _add_call(self, message: ParsedMessage, part: ImportedToolCallPart) -> None:
        call_id = f"call_{uuid4().hex}"
        self.open_calls[part.call_id] = (call_id, part.tool)
        data: dict[str, JSON] = {"tool": part.tool, "arguments": self._rewrite_json(part.arguments)}
        self.rows.append(
            replace(self._make_row(message.created_at, "tool_call", ""), call_id=call_id, data=data)
        )

    def _add_result(self, at: datetime, part: ImportedToolResultPart) -> None:
        call_id, tool = self.open_calls.pop(part.call_id)
        text = self._rewrite_text(part.text)
        data = build_result_data(
            tool, success=part.success, preview=text[:MAX_PREVIEW_CHARACTERS], duration_ms=part.duration_ms
        )
        self.rows.append(replace(self._make_row(at, "tool_result", text), call_id=call_id, data=data))

    def _close_calls(self) -> None:
        """Give calls without a result a failed one: nothing of a document ever runs."""
        for imported_id in [call_id for call_id in self.open_calls if call_id not in self.answered]:
            call_id, tool = self.open_calls.pop(imported_id)
            data = build_result_data(tool, success=False, preview=UNANSWERED_CALL_TEXT)
            row = self._make_row(self.rows[-1].created_at, "tool_result", UNANSWERED_CALL_TEXT)
            self.rows.append(replace(row, call_id=call_id, data=data))

    def _add_row(
        self, message: ParsedMessage, kind: str, text: str, data: dict[str, JSON] | None = None
    ) -> None:
        self.rows.append(replace(self._make_row(message.created_at, kind, text), data=data or {}))

    def _make_row(self, at: datetime, kind: str, text: str) -> ImportedMessage:
        return ImportedMessage(id=uuid4(), turn_id=self.turns[-1].id, kind=kind, content=text, created_at=at)

    def _rewrite_text(self, text: str) -> str:
        return self.names.rewrite_references(text)

    def _rewrite_json(self, value: object) -> JSON:
        """Rewrite the texts in arguments. The parser has limited their depth."""
        match value:
            case dict():
                return {self._rewrite_string(key): self._rewrite_json(inner) for key, inner in value.items()}
            case list():
                return [self._rewrite_json(inner) for inner in value]
            case str():
                return self._rewrite_string(value)
            case bool() | int() | float() | None:
                return value
            case _:
                raise TypeError(f"not JSON: {type(value).__name__}")

    def _rewrite_string(self, text: str) -> str:
        return self._rewrite_text(strip_server_tags(make_storable(text)))


IMPORT_ORIGIN = "import"
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
    if is_archive(head):
        with open_archive(content) as archive:
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
    limit = MAX_JSON_BYTES
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
    archive: ImportArchive | None,
    *,
    force: bool,
) -> Session:
    with _delete_objects_on_failure() as stored, transaction.atomic():
        session = sessions.create_imported_session(
            owner_id, document.session.title, created_at=document.session.created_at
        )
        _record_import(owner_id, digest, session, force=force)
        names = _store_files(session, document, archive, stored)
        mapped = map_document(document, names)
        accepted = insert_imported_messages(session.pk, mapped.rows, origin=IMPORT_ORIGIN)
        insert_imported_turns(session.pk, mapped.turns, origin=IMPORT_ORIGIN, accepted=accepted)
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
    archive: ImportArchive | None,
    stored: list[str],
) -> ImportedFileNames:
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
    return ImportedFileNames(stored=found, missing=missing)


# --- History from the API ----------------------------------------------------------------------------

HISTORY_ORIGIN = "import"


def import_history(
    owner_id: int,
    messages: Sequence[dict[str, JSON]],
    *,
    at: str,
    instructions: str,
    listed: bool,
    session_id: UUID | None = None,
    attachments: Mapping[str, AttachmentPayload] | None = None,
) -> UUID:
    """Create a session whose past is given by the caller, as rows of ended turns.

    `messages` have the form of the export document, and are validated like one, except for the length of their
    texts: the request that brought them is bounded as a whole. An unlisted session serves one answer; its caller
    deletes it.
    """
    document = _parse_history(messages, at)
    if listed:
        session_id = sessions.create_session(owner_id, pk=session_id).pk
        if instructions:
            sessions.update_session_settings(owner_id, session_id, {"instructions": instructions})
    else:
        session_id = sessions.create_unlisted_session(owner_id, instructions)
    if document.messages:
        names = ImportedFileNames(stored=attachments or {}, missing={})
        mapped = map_document(document, names)
        with transaction.atomic():
            accepted = insert_imported_messages(session_id, mapped.rows, origin=HISTORY_ORIGIN)
            insert_imported_turns(session_id, mapped.turns, origin=HISTORY_ORIGIN, accepted=accepted)
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
            },
            limits_texts=False,
        )
    except import_parser.InvalidDocument as invalid:
        raise InvalidRequest("The messages are not valid.", hint=invalid.hint) from invalid
