"""Read a session page by page for an export, so that memory does not grow with its length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal
from uuid import UUID

import msgspec
from django.conf import settings
from django.db.models import QuerySet, Sum
from django.db.models.functions import Length
from django.utils import timezone

from config.core.text import clean_filename
from copilot.exports import documents
from copilot.models import Message, Session, WorkspaceFile
from copilot.realtime import payloads

ExportFormat = Literal["md", "json"]

ROWS_PER_PAGE = 500
MAX_DIRECT_MESSAGES = 2000  # a longer chat is exported by a background job
MAX_DIRECT_CHARACTERS = 5_000_000  # a longer export needs a job, however few the messages


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of an export."""

    format: ExportFormat = "md"
    reasoning: bool = False
    tools: bool = False
    files: bool = False

    def get_kinds_choice(self) -> documents.ExportedKindsChoice:
        return documents.ExportedKindsChoice(reasoning=self.reasoning, tools=self.tools)

    def to_json(self) -> dict[str, bool]:
        return {name: value for name, value in asdict(self).items() if name != "format"}


def is_long_export(session_id: UUID, options: ExportOptions) -> bool:
    rows = _exported_rows(session_id, options)
    if rows.count() > MAX_DIRECT_MESSAGES:
        return True
    return (rows.aggregate(total=Sum(Length("content")))["total"] or 0) > MAX_DIRECT_CHARACTERS


def _exported_rows(session_id: UUID, options: ExportOptions) -> QuerySet[Message]:
    return Message.objects.visible().filter(
        session=session_id, streaming=False, kind__in=options.get_kinds_choice().list_kinds()
    )


class SessionExport:
    """One export of one session. A first pass finds the files it names, a second one writes the text."""

    def __init__(self, session: Session, options: ExportOptions) -> None:
        self._session = session
        self._options = options
        newest = (
            _exported_rows(session.pk, options)
            .order_by("-sequence")
            .values_list("sequence", flat=True)
            .first()
        )
        self._through = newest or 0  # later messages belong to the next export
        self._exported_at = payloads.format_timestamp(timezone.now())

    def get_file_name(self, extension: str) -> str:
        title = self._session.title.replace("/", "_").replace("\\", "_").strip(" .")
        return clean_filename(f"{title or 'conversation'}.{extension}")

    def list_named_files(self) -> list[WorkspaceFile]:
        """Return the owner's files that the session names, in order, then those that were made in it."""
        ids = list(
            dict.fromkeys(
                file for message in self._iter_messages() for file in documents.find_named_files(message)
            )
        )
        own = WorkspaceFile.objects.filter(owner=self._session.owner_id).exclude(
            source=WorkspaceFile.Source.TOOL_OUTPUT
        )
        found = {str(file.pk): file for file in own.filter(pk__in=ids)}
        rest = own.filter(session=self._session, deleted_at=None, purged_at=None).exclude(pk__in=ids)
        return [*(found[file_id] for file_id in ids if file_id in found), *rest.order_by("created_at", "id")]

    def iter_chunks(
        self, named: list[WorkspaceFile], paths: dict[UUID, str] | None = None
    ) -> Iterator[bytes]:
        entries = [_to_exported_file(file, (paths or {}).get(file.pk)) for file in named]
        if self._options.format == "json":
            known = {entry.id for entry in entries}
            return documents.encode_document(self._build_head(), self._iter_messages(known), entries)
        return documents.render_markdown(
            self._build_head(), self._iter_messages(), {entry.id: entry for entry in entries}
        )

    def _build_head(self) -> documents.DocumentHead:
        return documents.DocumentHead(
            exported_at=self._exported_at,
            app_version=settings.VERSION,
            session=documents.ExportedSession(
                title=self._session.title,
                created_at=payloads.format_timestamp(self._session.created_at),
                model_tier=self._get_last_tier(),
            ),
        )

    def _get_last_tier(self) -> str:
        messages = Message.objects.visible().filter(session=self._session, kind="user")
        return messages.exclude(tier="").order_by("-sequence").values_list("tier", flat=True).first() or ""

    def _iter_messages(self, known: set[str] | None = None) -> Iterator[documents.ExportedMessage]:
        """Yield messages, with attachments limited to `known`: every id in a document needs an entry."""
        for message in documents.group_messages(self._iter_rows()):
            if known is not None and not known.issuperset(message.attachments):
                kept = [file_id for file_id in message.attachments if file_id in known]
                yield msgspec.structs.replace(message, attachments=kept)
            else:
                yield message

    def _iter_rows(self) -> Iterator[documents.ExportedRow]:
        last_sequence = 0
        rows = (
            _exported_rows(self._session.pk, self._options)
            .filter(sequence__lte=self._through)
            .order_by("sequence")
        )
        while page := list(rows.filter(sequence__gt=last_sequence)[:ROWS_PER_PAGE]):
            yield from map(_to_exported_row, page)
            last_sequence = page[-1].sequence or 0


def _to_exported_row(row: Message) -> documents.ExportedRow:
    return documents.ExportedRow(
        id=str(row.pk),
        sequence=row.sequence or 0,
        kind=row.kind,
        text=row.content,
        created_at=payloads.format_timestamp(row.created_at),
        data=row.data,
        call_id=row.call_id or "",
        author=row.author,
        branch=row.branch,
        attachments=[attachment["file_id"] for attachment in row.attachments] if row.kind == "user" else [],
    )


def _to_exported_file(file: WorkspaceFile, path: str | None) -> documents.ExportedFile:
    return documents.ExportedFile(
        id=str(file.pk),
        name=file.name,
        mime=file.mime,
        size=file.size_bytes,
        sha256=file.sha256,
        path=path,
    )
