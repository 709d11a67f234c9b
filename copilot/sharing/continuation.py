"""Continue a shared session in the reader's own account by importing its payload as a document."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from django.conf import settings

from config.core.json_values import JSON
from copilot.exports import archives, documents, imports
from copilot.exports.documents import ExportedRow
from copilot.models import Session, Share, WorkspaceFile
from copilot.realtime import payloads
from copilot.sharing import access
from copilot.sharing import payloads as sharing_payloads

MAX_IN_MEMORY_BYTES = 1024 * 1024
NOT_SHARED_TEXT = "(not shared)"  # in place of results that the owner did not publish


def can_continue(share: Share) -> bool:
    """Return whether the owner allowed it. Only sessions can be continued; files are simply downloaded."""
    return share.kind == Share.Kind.CONVERSATION and share.options.get("allow_continue") is True


def import_share(reader_id: int, share: Share) -> Session:
    """Create a session of the reader's own from the payload. Refused if the reader already imported it."""
    found = access.list_shared_files(share)
    with tempfile.SpooledTemporaryFile(max_size=MAX_IN_MEMORY_BYTES) as archive:
        archives.write_archive(
            archive, "conversation.json", found, lambda paths: _build_document(share, found, paths)
        )
        archive.seek(0)
        return imports.import_document(reader_id, archive)


def _build_document(
    share: Share, found: Sequence[WorkspaceFile], paths: Mapping[UUID, str]
) -> Iterator[bytes]:
    """Build the same bytes every time, so that a second import is recognised."""
    payload = access.load_payload(share)
    created_at = payloads.format_timestamp(share.created_at)
    head = documents.DocumentHead(
        exported_at=created_at,
        app_version=settings.VERSION,
        session=documents.ExportedSession(title=payload.title, created_at=created_at, model_tier="standard"),
    )
    listed = [
        documents.ExportedFile(
            id=str(file.pk),
            name=file.name,
            mime=file.mime,
            size=file.size_bytes,
            sha256=file.sha256,
            path=paths.get(file.pk),
        )
        for file in found
    ]
    author = share.options.get("author")
    lines = _build_rows(payload.messages, author if isinstance(author, str) else "")
    return documents.encode_document(head, documents.group_messages(lines), listed)


def _build_rows(entries: Iterable[sharing_payloads.SharedEntry], author: str) -> Iterator[ExportedRow]:
    for number, entry in enumerate(entries, start=1):
        match entry:
            case sharing_payloads.Said():
                yield ExportedRow(
                    id=f"m{number}",
                    sequence=2 * number,
                    kind=entry.role,
                    text=entry.text,
                    created_at=entry.created_at,
                    author=(entry.author or author) if entry.role == "user" else "",
                    attachments=sharing_payloads.find_file_ids(entry.attachments),
                )
            case sharing_payloads.Thought():
                yield _make_row(number, "reasoning", entry.text, entry.created_at)
            case sharing_payloads.Step():
                yield from _build_call_rows(number, entry)


def _build_call_rows(number: int, step: sharing_payloads.Step) -> Iterator[ExportedRow]:
    call_data: dict[str, JSON] = {"tool": step.tool, "arguments": _parse_arguments(step.arguments)}
    result_data: dict[str, JSON] = {"tool": step.tool, "success": step.outcome == "done", "duration_ms": 0}
    yield _make_row(number, "tool_call", "", step.created_at, call_data)
    yield _make_row(number, "tool_result", step.output or NOT_SHARED_TEXT, step.created_at, result_data)


def _make_row(
    number: int, kind: str, text: str, created_at: str, data: Mapping[str, JSON] | None = None
) -> ExportedRow:
    """Make a row. A call and its result get adjacent sequence numbers."""
    return ExportedRow(
        id=f"m{number}-{kind}",
        sequence=2 * number + (kind == "tool_result"),
        kind=kind,
        text=text,
        created_at=created_at,
        data=data or {},
        call_id=f"c{number}" if data else "",
    )


def _parse_arguments(text: str) -> dict[str, JSON]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {"text": text}
    return found if isinstance(found, dict) else {"text": text}
