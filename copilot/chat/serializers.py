"""Serialize messages, approvals, questions, goals and the context of a session for clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec
from django.db.models import Count

from copilot.chat.approvals import get_remaining_cap
from copilot.chat.commands import ORIGINS_WITHOUT_SPEAKER
from copilot.chat.notices import NO_SOURCE, NOTICES, FailureSource
from copilot.models import Approval, Message, Question, Session
from copilot.realtime.payloads import (
    ApprovalPayload,
    AttachmentPayload,
    ContextPayload,
    ContextUsage,
    GoalPayload,
    GoalState,
    MessageContent,
    MessageKind,
    MessagePayload,
    MessageRole,
    NoticeContent,
    QuestionPayload,
    ToolResultContent,
    format_timestamp,
)
from copilot.tools.labels import is_failed_program, summarize_result
from copilot.tools.results import build_call_content, redact_arguments

_ROLES_BY_KIND: dict[str, MessageRole] = {"user": "user", "summary": "summary", "notice": "notice"}


def serialize_message(row: Message, versions: int = 1) -> MessagePayload:
    return MessagePayload(
        id=str(row.pk),
        sequence=row.sequence or 0,
        turn_id=str(row.turn_id) if row.turn_id else None,
        kind=_parse_kind(row.kind),
        role=_ROLES_BY_KIND.get(row.kind, "assistant"),
        content=serialize_content(row),
        author=row.author,
        attachments=[msgspec.convert(item, AttachmentPayload) for item in row.attachments],
        branch=row.branch,
        created_at=format_timestamp(row.created_at),
        streaming=row.streaming,
        mid_turn=row.mid_turn,
        model=row.model,
        versions=versions,
        duration_ms=getattr(row, "turn_ms", None),
        origin=row.origin if row.origin in ORIGINS_WITHOUT_SPEAKER else "",
    )


def serialize_messages(rows: Sequence[Message]) -> list[MessagePayload]:
    """Serialize messages with the number of versions of each, counted only where a message has versions."""
    groups = {row.version_of for row in rows if row.version_of is not None}
    counts: dict[UUID | None, int] = {}
    if groups:
        found = Message.objects.filter(version_of__in=groups).exclude(hidden=Message.Hidden.UNDONE)
        counts = dict(found.values_list("version_of").annotate(Count("pk")))
    return [serialize_message(row, counts.get(row.version_of, 1)) for row in rows]


def _parse_kind(kind: str) -> MessageKind:
    known: MessageKind = msgspec.convert(kind, MessageKind)
    return known


def serialize_content(row: Message) -> MessageContent:
    """Serialize the content as people see it; the model's copy of a tool result is left out."""
    match row.kind:
        case Message.Kind.TOOL_CALL:
            return build_call_content(row.call_id or "", row.data["tool"], row.data.get("arguments") or {})
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
                    "summary": row.data.get("summary") or _summarize(row),
                    "program_failed": is_failed_program(row.data["preview"]),
                    **fields,
                },
                ToolResultContent,
            )
        case Message.Kind.NOTICE:
            source = {name: row.data.get(name, "") for name in ("provider", "model", "request_id")}
            return serialize_notice(row.data["code"], row.data.get("details", ""), FailureSource(**source))
        case _:
            return row.content


def _summarize(row: Message) -> str:
    """Summarize a result that was stored without a summary."""
    return summarize_result(row.data["tool"], row.data["preview"]) if row.data["success"] else ""


def serialize_notice(code: str, details: str = "", source: FailureSource = NO_SOURCE) -> NoticeContent:
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


# --- Approvals and questions -------------------------------------------------------------------------


def list_open_approvals(session_id: UUID) -> list[ApprovalPayload]:
    rows = Approval.objects.requested().filter(session=session_id)
    return serialize_approvals(rows.order_by("created_at", "position"))


def serialize_approvals(rows: Iterable[Approval]) -> list[ApprovalPayload]:
    """Serialize approvals for their owner; the remaining cap is shown only where it blocked the call."""
    rows = list(rows)
    blocked = next((row.session_id for row in rows if row.block_reason), None)
    remaining = get_remaining_cap(blocked) if blocked is not None else None
    return [
        ApprovalPayload(
            id=str(row.pk),
            turn_id=str(row.turn_id),
            call_id=row.call_id,
            tool=row.tool,
            arguments=redact_arguments(row.arguments),
            reason=row.reason,
            block_reason=row.block_reason,
            estimate_microdollars=row.estimate_microdollars,
            remaining_cap_microdollars=remaining if row.block_reason else None,
            can_always_allow=not row.manual_only,
        )
        for row in rows
    ]


def list_open_questions(session_id: UUID) -> list[QuestionPayload]:
    rows = Question.objects.open().filter(session=session_id).order_by("created_at")
    return [serialize_question(row) for row in rows]


def serialize_question(row: Question) -> QuestionPayload:
    return QuestionPayload(
        id=str(row.pk),
        turn_id=str(row.turn_id),
        call_id=row.call_id,
        question=row.question,
        choices=list(row.choices),
        allow_text=row.allow_text,
        deadline=format_timestamp(row.deadline),
    )


# --- Goal and context --------------------------------------------------------------------------------


def serialize_goal(session: Session) -> GoalPayload | None:
    if not session.goal_state:
        return None
    return GoalPayload(
        text=session.goal,
        state=msgspec.convert(session.goal_state, GoalState),
        reason=session.goal_reason,
        continuations=session.goal_continuations,
    )


def serialize_context(session: Session) -> ContextPayload:
    return msgspec.convert(session.context, ContextUsage).to_payload()
