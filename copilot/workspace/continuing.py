"""A share goes on in the account of whoever reads it: its payload as a document, taken in like any other (S11, S16)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from django.conf import settings

from copilot import queries
from copilot.events import JSON
from copilot.models import Session, Share, WorkspaceFile
from copilot.workspace import archives, documents, imports, publication, visiting
from copilot.workspace.documents import Line

IN_MEMORY_BYTES = 1024 * 1024
UNSAID = "(not shared)"  # of a call whose arguments and answer the owner kept


def is_allowed(share: Share) -> bool:
    """By its owner, and only of a conversation: a file is simply downloaded."""
    return share.kind == Share.Kind.CONVERSATION and share.options.get("allow_continue") is True


def bring_in(reader_id: int, share: Share) -> Session:
    """A session of the reader's own that begins with what is public of this one; refused if there is one already."""
    found = visiting.files_of(share)
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES) as archive:
        archives.pack(archive, "conversation.json", found, lambda paths: _document(share, found, paths))
        archive.seek(0)
        return imports.bring_in(reader_id, archive)


def _document(share: Share, found: Sequence[WorkspaceFile], paths: Mapping[UUID, str]) -> Iterator[bytes]:
    """The same bytes whenever it is asked for, so that a second import is known for what it is."""
    payload = visiting.payload_of(share)
    made = queries.instant(share.created_at)
    head = documents.Head(
        exported_at=made,
        app_version=settings.VERSION,
        session=documents.Session(title=payload.title, created_at=made, model_tier="standard"),
    )
    listed = [
        documents.File(
            id=str(one.pk),
            name=one.name,
            mime=one.mime,
            size=one.size_bytes,
            sha256=one.sha256,
            path=paths.get(one.pk),
        )
        for one in found
    ]
    author = share.options.get("author")
    lines = _lines(payload.messages, author if isinstance(author, str) else "")
    return documents.encoded(head, documents.messages(lines), listed)


def _lines(entries: Iterable[publication.Entry], author: str) -> Iterator[Line]:
    for number, entry in enumerate(entries, start=1):
        match entry:
            case publication.Said():
                yield Line(
                    id=f"m{number}",
                    sequence=2 * number,
                    kind=entry.role,
                    text=entry.text,
                    created_at=entry.created_at,
                    author=(entry.author or author) if entry.role == "user" else "",
                    attachments=publication.file_ids(entry.attachments),
                )
            case publication.Thought():
                yield _line(number, "reasoning", entry.text, entry.created_at)
            case publication.Step():
                yield from _call(number, entry)


def _call(number: int, step: publication.Step) -> Iterator[Line]:
    asked: dict[str, JSON] = {"tool": step.tool, "arguments": _arguments(step.arguments)}
    answered: dict[str, JSON] = {"tool": step.tool, "success": step.outcome == "done", "duration_ms": 0}
    yield _line(number, "tool_call", "", step.created_at, asked)
    yield _line(number, "tool_result", step.output or UNSAID, step.created_at, answered)


def _line(number: int, kind: str, text: str, created_at: str, data: Mapping[str, JSON] | None = None) -> Line:
    """A call and its answer have places next to each other."""
    return Line(
        id=f"m{number}-{kind}",
        sequence=2 * number + (kind == "tool_result"),
        kind=kind,
        text=text,
        created_at=created_at,
        data=data or {},
        call_id=f"c{number}" if data else "",
    )


def _arguments(text: str) -> dict[str, JSON]:
    """As they were published, which may have been cut short."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {"text": text}
    return found if isinstance(found, dict) else {"text": text}
