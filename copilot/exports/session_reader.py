"""A session, read page by page for whoever takes it out: however long it is, a page of it is held (S15)."""

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

from config.core.filenames import clean_filename
from copilot.exports import documents, markdown_document
from copilot.models import Message, Session, WorkspaceFile
from copilot.realtime import payloads

ExportFormat = Literal["md", "json"]

ROWS_PER_PAGE = 500
MAX_DIRECT_CHARACTERS = 5_000_000  # more text than that is nobody's to wait for, however few the messages


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What a person asked for."""

    format: ExportFormat = "md"
    reasoning: bool = False
    tools: bool = False
    files: bool = False

    def get_kinds_choice(self) -> documents.ExportedKindsChoice:
        return documents.ExportedKindsChoice(reasoning=self.reasoning, tools=self.tools)

    def to_json(self) -> dict[str, bool]:
        return {name: value for name, value in asdict(self).items() if name != "format"}


def is_long_export(session_id: UUID, wanted: ExportOptions) -> bool:
    rows = _exported_rows(session_id, wanted)
    if rows.count() > settings.EXPORT_DIRECT_MESSAGES:
        return True
    return (rows.aggregate(total=Sum(Length("content")))["total"] or 0) > MAX_DIRECT_CHARACTERS


def _exported_rows(session_id: UUID, wanted: ExportOptions) -> QuerySet[Message]:
    return Message.objects.filter(
        session=session_id,
        hidden="",
        streaming=False,
        sequence__isnull=False,
        kind__in=wanted.get_kinds_choice().list_kinds(),
    )


class SessionExport:
    """One export of one session: what it names is found in a first reading, its text is written in a second."""

    def __init__(self, session: Session, wanted: ExportOptions) -> None:
        self._session = session
        self._wanted = wanted
        newest = (
            _exported_rows(session.pk, wanted)
            .order_by("-sequence")
            .values_list("sequence", flat=True)
            .first()
        )
        self._through = newest or 0  # what is said meanwhile belongs to the next export
        self._exported_at = payloads.format_timestamp(timezone.now())

    def get_file_name(self, extension: str) -> str:
        """From the title, whose slashes are no folders."""
        title = self._session.title.replace("/", "_").replace("\\", "_").strip(" .")
        return clean_filename(f"{title or 'conversation'}.{extension}")

    def list_named_files(self) -> list[WorkspaceFile]:
        """The owner's files that the conversation names, in order, then those that were made in it."""
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
        return [*(found[one] for one in ids if one in found), *rest.order_by("created_at", "id")]

    def iter_chunks(
        self, named: list[WorkspaceFile], paths: dict[UUID, str] | None = None
    ) -> Iterator[bytes]:
        entries = [_to_exported_file(file, (paths or {}).get(file.pk)) for file in named]
        if self._wanted.format == "json":
            known = {entry.id for entry in entries}
            return documents.encode_document(self._build_head(), self._iter_messages(known), entries)
        return markdown_document.render_markdown(
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
        """What was asked for last; a message need not ask for any."""
        said = Message.objects.filter(session=self._session, kind="user", hidden="", sequence__isnull=False)
        return said.exclude(tier="").order_by("-sequence").values_list("tier", flat=True).first() or ""

    def _iter_messages(self, known: set[str] | None = None) -> Iterator[documents.ExportedMessage]:
        """With `known`, only attachments among them: every id in a document has its entry."""
        for message in documents.group_messages(self._iter_rows()):
            if known is not None and not known.issuperset(message.attachments):
                kept = [one for one in message.attachments if one in known]
                yield msgspec.structs.replace(message, attachments=kept)
            else:
                yield message

    def _iter_rows(self) -> Iterator[documents.ExportedRow]:
        place = 0
        rows = (
            _exported_rows(self._session.pk, self._wanted)
            .filter(sequence__lte=self._through)
            .order_by("sequence")
        )
        while page := list(rows.filter(sequence__gt=place)[:ROWS_PER_PAGE]):
            yield from map(_to_exported_row, page)
            place = page[-1].sequence or 0


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
        attachments=[one["file_id"] for one in row.attachments] if row.kind == "user" else [],
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
