"""Draft a share before it is published: the payload of a session and the files that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast
from uuid import UUID

import msgspec
from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Count, F, Q, QuerySet, Sum
from django.db.models.functions import Left, Length

from config.core.errors import Conflict, NotFound, PayloadTooLarge
from copilot.files import services as files
from copilot.models import Message, Session, WorkspaceFile
from copilot.realtime import payloads
from copilot.sharing import payloads as sharing_payloads
from copilot.sharing.payloads import (
    CallWithResult,
    IncludedParts,
    PublicFile,
    SharedCallOutcome,
    SharePayload,
    TranscriptRow,
)

AUTOMATED_ORIGINS = ("schedule", "goal", "parent", "follow_up")  # origins of messages that no person wrote

WithheldReason = Literal["", "excluded", "not_vouched_for", "tool_output"]
RowKind = Literal["user", "assistant", "reasoning", "tool_call"]


@dataclass(frozen=True, kw_only=True)
class ShareRequest:
    """The owner's choice of what to publish of a session."""

    through: UUID | None = None
    include_reasoning: bool = False
    include_tools: bool = False
    show_author: bool = False
    allow_continue: bool = False  # readers may continue it in their own account
    title: str = ""
    exclude_files: frozenset[UUID] = frozenset()
    include_files: frozenset[UUID] = frozenset()


@dataclass(frozen=True, kw_only=True)
class FileCandidate:
    """A file of the owner that the payload names."""

    file: WorkspaceFile
    withheld: WithheldReason = ""  # why it is not published


@dataclass(frozen=True, kw_only=True)
class ShareDraft:
    payload: SharePayload
    through_sequence: int
    candidates: list[FileCandidate]

    def list_public_files(self) -> list[WorkspaceFile]:
        return [candidate.file for candidate in self.candidates if not candidate.withheld]


def draft_session_share(session: Session, request: ShareRequest, *, hold_files: bool = False) -> ShareDraft:
    """Draft a share of a session. `hold_files` locks the files until the transaction ends."""
    shown = _shareable_rows(session, request)
    _check_total_length(shown)
    rows = list(shown.order_by("sequence").defer("server_context", "replay"))
    if not rows:
        raise Conflict("There's nothing to share in this chat yet.", code="nothing_to_share")
    published = _build_rows(session, rows, tools=request.include_tools)
    payload = sharing_payloads.build_payload(
        published,
        title=request.title or session.title,
        included=IncludedParts(reasoning=request.include_reasoning, tools=request.include_tools),
    )
    candidates = _find_candidates(session, payload, published, request, hold=hold_files)
    draft = ShareDraft(payload=payload, through_sequence=rows[-1].sequence or 0, candidates=candidates)
    return _finalize_draft(draft)


def build_file_payload(file: WorkspaceFile) -> SharePayload:
    return SharePayload(kind="file", title=file.name, files=[_to_public_file(file)])


def format_author(user: User) -> str:
    """Return the name others may see; never the email address."""
    name = user.get_full_name().strip() or user.get_username()
    return name.partition("@")[0]


# --- Rows --------------------------------------------------------------------------------------------


def _shareable_rows(session: Session, request: ShareRequest) -> QuerySet[Message]:
    """Return finished rows up to the requested message, of the kinds that a share can show."""
    kinds = [Message.Kind.USER, Message.Kind.ASSISTANT, Message.Kind.TOOL_CALL]
    if request.include_reasoning:
        kinds.append(Message.Kind.REASONING)
    ended = Q(turn__isnull=True) | Q(turn__ended_at__isnull=False)
    rows = Message.objects.visible().filter(ended, session=session, kind__in=kinds, streaming=False)
    return (
        rows
        if request.through is None
        else rows.filter(sequence__lte=_get_sequence(session, request.through))
    )


def _get_sequence(session: Session, message_id: UUID) -> int:
    rows = Message.objects.visible().filter(pk=message_id, session=session)
    sequence = rows.values_list("sequence", flat=True).first()
    if sequence is None:
        raise NotFound("That message isn't in this chat.")
    return sequence


def _check_total_length(rows: QuerySet[Message]) -> None:
    """Check the length in the database first: a session may be larger than memory."""
    found = rows.aggregate(count=Count("pk"), characters=Sum(Length("content")))
    if found["count"] > settings.SHARE_MESSAGES_MAX:
        raise _make_too_long_error(
            f"It has {found['count']:,} messages; up to {settings.SHARE_MESSAGES_MAX:,} can be shared."
        )
    if (found["characters"] or 0) > settings.SHARE_PAYLOAD_MAX_BYTES:
        raise _make_too_long_error(_byte_limit_message())


def _make_too_long_error(details: str) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"This chat is too long to share. {details}",
        code="too_long_to_share",
        hint="Share up to an earlier message with `through`.",
        limit_messages=settings.SHARE_MESSAGES_MAX,
        limit_bytes=settings.SHARE_PAYLOAD_MAX_BYTES,
    )


def _byte_limit_message() -> str:
    return f"Shares can be up to {settings.SHARE_PAYLOAD_MAX_BYTES:,} bytes."


def _build_rows(session: Session, rows: Sequence[Message], *, tools: bool) -> list[TranscriptRow]:
    results = _load_results(session, [row.call_id for row in rows if row.call_id], with_output=tools)
    return [_build_row(row, results) for row in rows]


def _build_row(row: Message, results: dict[str, tuple[SharedCallOutcome, str]]) -> TranscriptRow:
    is_automated = row.origin in AUTOMATED_ORIGINS
    call = None
    if row.kind == Message.Kind.TOOL_CALL:
        outcome, output = results.get(row.call_id or "", ("stopped", ""))
        arguments = row.data.get("arguments") or {}
        call = CallWithResult(tool=str(row.data["tool"]), outcome=outcome, arguments=arguments, output=output)
    return TranscriptRow(
        kind=cast(RowKind, row.kind),
        created_at=payloads.format_timestamp(row.created_at),
        text="" if call else row.content,
        member="" if is_automated else row.author,
        spoken=not is_automated,
        attachments=tuple(str(attachment["file_id"]) for attachment in row.attachments),
        call=call,
    )


def _load_results(
    session: Session, call_ids: Sequence[str], *, with_output: bool
) -> dict[str, tuple[SharedCallOutcome, str]]:
    """Return the outcome of each call. Outputs are read only if they are shown, and no further than they are."""
    found = Message.objects.filter(
        session=session, kind=Message.Kind.TOOL_RESULT, hidden="", call_id__in=call_ids
    )
    most = sharing_payloads.MAX_TOOL_CHARACTERS + 1 if with_output else 0
    outcomes: dict[str, tuple[SharedCallOutcome, str]] = {}
    beginning = Left("content", most) if most else F("kind")
    rows = found.values_list("call_id", "data__success", "data__cancelled", beginning)
    for call_id, success, cancelled, head in rows:
        outcome: SharedCallOutcome = "done" if success else "stopped" if cancelled else "failed"
        outcomes[str(call_id)] = (outcome, head if most else "")
    return outcomes


# --- Files -------------------------------------------------------------------------------------------


def _find_candidates(
    session: Session,
    payload: SharePayload,
    rows: Sequence[TranscriptRow],
    request: ShareRequest,
    *,
    hold: bool,
) -> list[FileCandidate]:
    named = sharing_payloads.find_file_ids(payload)
    usable = (
        WorkspaceFile.objects.available()
        .filter(pk__in=named, owner=session.owner_id, scan__in=files.USABLE_SCANS)
        .order_by("pk")
    )  # a fixed order of locks prevents deadlocks
    if hold:
        usable = usable.select_for_update(no_key=True)
    own = sharing_payloads.find_own_file_ids(payload, rows)
    found = {str(file.pk): file for file in usable}
    return [
        FileCandidate(
            file=found[file_id],
            withheld=_withheld_reason(found[file_id], session, request, vouched=file_id in own),
        )
        for file_id in named
        if file_id in found
    ]


def _withheld_reason(
    file: WorkspaceFile, session: Session, request: ShareRequest, *, vouched: bool
) -> WithheldReason:
    """Keep text steered by a third party from publishing a file of another chat or of the whole account."""
    if file.pk in request.exclude_files:
        return "excluded"
    if file.source == WorkspaceFile.Source.TOOL_OUTPUT and not request.include_tools:
        return "tool_output"
    belongs_here = file.session_id == session.pk or (file.session_id is None and vouched)
    return "" if belongs_here or file.pk in request.include_files else "not_vouched_for"


def _finalize_draft(draft: ShareDraft) -> ShareDraft:
    payload = replace(draft.payload, files=[_to_public_file(file) for file in draft.list_public_files()])
    if not payload.messages:
        raise Conflict("There's nothing in this chat that can be shared.", code="nothing_to_share")
    if len(msgspec.json.encode(payload)) > settings.SHARE_PAYLOAD_MAX_BYTES:
        raise _make_too_long_error(_byte_limit_message())
    return replace(draft, payload=payload)


def _to_public_file(file: WorkspaceFile) -> PublicFile:
    return PublicFile(id=str(file.pk), name=file.name, type=file.mime, size=file.size_bytes)
