"""A row of a conversation as people see it."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec
from django.db.models import Count

from copilot.events import (
    AttachmentView,
    Content,
    MessageView,
    NoticeContent,
    Role,
    RowKind,
    ToolCallContent,
    ToolResultContent,
    instant,
)
from copilot.models import Message
from copilot.notices import NOBODY, NOTICES, Source
from copilot.previews import preview_arguments

_ROLES: dict[str, Role] = {"user": "user", "summary": "summary", "notice": "notice"}


def message_view(row: Message, versions: int = 1) -> MessageView:
    return MessageView(
        id=str(row.pk),
        sequence=row.sequence or 0,
        turn_id=str(row.turn_id) if row.turn_id else None,
        kind=_kind(row.kind),
        role=_ROLES.get(row.kind, "assistant"),
        content=content_of(row),
        author=row.author,
        attachments=[msgspec.convert(one, AttachmentView) for one in row.attachments],
        branch=row.branch,
        created_at=instant(row.created_at),
        streaming=row.streaming,
        mid_turn=row.mid_turn,
        model=row.model,
        versions=versions,
        duration_ms=getattr(row, "turn_ms", None),
    )


def with_versions(rows: Sequence[Message]) -> list[MessageView]:
    """With the number of versions of each; only a page that shows some asks for it."""
    groups = {row.version_of for row in rows if row.version_of is not None}
    counts: dict[UUID | None, int] = {}
    if groups:
        found = Message.objects.filter(version_of__in=groups).exclude(hidden=Message.Hidden.UNDONE)
        counts = dict(found.values_list("version_of").annotate(Count("pk")))
    return [message_view(row, counts.get(row.version_of, 1)) for row in rows]


def _kind(kind: str) -> RowKind:
    known: RowKind = msgspec.convert(kind, RowKind)
    return known


def content_of(row: Message) -> Content:
    """The row's content as people see it; the model's copy of a result stays with us."""
    match row.kind:
        case Message.Kind.TOOL_CALL:
            return ToolCallContent(
                call_id=row.call_id or "",
                tool=row.data["tool"],
                arguments=preview_arguments(row.data.get("arguments") or {}),
            )
        case Message.Kind.TOOL_RESULT:
            fields = {
                name: row.data[name] for name in ("tool", "success", "preview", "duration_ms", "truncated")
            }
            return msgspec.convert(
                {
                    "call_id": row.call_id or "",
                    "file_id": row.data.get("file_id"),
                    "session_id": row.data.get("session_id"),
                    "cancelled": row.data.get("cancelled", False),
                    **fields,
                },
                ToolResultContent,
            )
        case Message.Kind.NOTICE:
            named = {name: row.data.get(name, "") for name in ("provider", "model", "request_id")}
            return notice_content(row.data["code"], row.data.get("details", ""), Source(**named))
        case _:
            return row.content


def notice_content(code: str, details: str = "", source: Source = NOBODY) -> NoticeContent:
    notice = NOTICES[code]
    return NoticeContent(
        code=code,
        label=notice.label,
        hint=notice.hint,
        action=notice.action,
        details=details,
        provider=source.provider,
        model=source.model,
        request_id=source.request_id,
    )
