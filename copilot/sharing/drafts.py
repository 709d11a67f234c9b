"""A share before it is made: what it would publish of a conversation, and which files with it (S8, S10)."""

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

AUTOMATED_ORIGINS = ("schedule", "goal", "parent")  # origins of messages that no person wrote

WithheldReason = Literal["", "excluded", "not_vouched_for", "tool_output"]
RowKind = Literal["user", "assistant", "reasoning", "tool_call"]


@dataclass(frozen=True, kw_only=True)
class ShareRequest:
    """What the owner wants to publish of a conversation."""

    through: UUID | None = None
    include_reasoning: bool = False
    include_tools: bool = False
    show_author: bool = False
    allow_continue: bool = False  # readers may take it into their own account
    title: str = ""
    exclude_files: frozenset[UUID] = frozenset()
    include_files: frozenset[UUID] = frozenset()


@dataclass(frozen=True, kw_only=True)
class FileCandidate:
    """A file of the owner's that the payload names."""

    file: WorkspaceFile
    withheld: WithheldReason = ""  # why it does not become public


@dataclass(frozen=True, kw_only=True)
class ShareDraft:
    payload: SharePayload
    through_sequence: int
    candidates: list[FileCandidate]

    def list_public_files(self) -> list[WorkspaceFile]:
        return [one.file for one in self.candidates if not one.withheld]


def draft_session_share(session: Session, asked: ShareRequest, *, hold_files: bool = False) -> ShareDraft:
    """`hold_files`: they stay as they are until the transaction ends."""
    shown = _shareable_rows(session, asked)
    _check_total_length(shown)
    rows = list(shown.order_by("sequence").defer("server_context", "replay"))
    if not rows:
        raise Conflict("Nothing in this conversation is finished yet.", code="nothing_to_share")
    published = _build_rows(session, rows, tools=asked.include_tools)
    payload = sharing_payloads.build_payload(
        published,
        title=asked.title or session.title,
        included=IncludedParts(reasoning=asked.include_reasoning, tools=asked.include_tools),
    )
    candidates = _find_candidates(session, payload, published, asked, hold=hold_files)
    draft = ShareDraft(payload=payload, through_sequence=rows[-1].sequence or 0, candidates=candidates)
    return _finalize_draft(draft)


def build_file_payload(file: WorkspaceFile) -> SharePayload:
    return SharePayload(kind="file", title=file.name, files=[_to_public_file(file)])


def format_author(user: User) -> str:
    """As others may know them; never the e-mail address."""
    name = user.get_full_name().strip() or user.get_username()
    return name.partition("@")[0]


# --- rows --------------------------------------------------------------------------------------------


def _shareable_rows(session: Session, asked: ShareRequest) -> QuerySet[Message]:
    """Finished rows at or before the place asked for, of the kinds that a share can show."""
    kinds = [Message.Kind.USER, Message.Kind.ASSISTANT, Message.Kind.TOOL_CALL]
    if asked.include_reasoning:
        kinds.append(Message.Kind.REASONING)
    ended = Q(turn__isnull=True) | Q(turn__ended_at__isnull=False)
    rows = Message.objects.filter(
        ended, session=session, hidden="", sequence__isnull=False, kind__in=kinds, streaming=False
    )
    return rows if asked.through is None else rows.filter(sequence__lte=_get_sequence(session, asked.through))


def _get_sequence(session: Session, message_id: UUID) -> int:
    rows = Message.objects.filter(pk=message_id, session=session, hidden="", sequence__isnull=False)
    place = rows.values_list("sequence", flat=True).first()
    if place is None:
        raise NotFound("There is no such message in this conversation.")
    return place


def _check_total_length(rows: QuerySet[Message]) -> None:
    """Before anything is read: a conversation may be longer than a process has memory."""
    found = rows.aggregate(count=Count("pk"), characters=Sum(Length("content")))
    if found["count"] > settings.SHARE_MESSAGES_MAX:
        raise _make_too_long_error(
            f"It has {found['count']:,} messages; {settings.SHARE_MESSAGES_MAX:,} can be shared."
        )
    if (found["characters"] or 0) > settings.SHARE_PAYLOAD_MAX_BYTES:
        raise _make_too_long_error(_byte_limit_message())


def _make_too_long_error(how: str) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"This conversation is too long to share. {how}",
        code="too_long_to_share",
        hint="Share up to an earlier message with `through`.",
        limit_messages=settings.SHARE_MESSAGES_MAX,
        limit_bytes=settings.SHARE_PAYLOAD_MAX_BYTES,
    )


def _byte_limit_message() -> str:
    return f"A share holds {settings.SHARE_PAYLOAD_MAX_BYTES:,} bytes."


def _build_rows(session: Session, rows: Sequence[Message], *, tools: bool) -> list[TranscriptRow]:
    results = _load_results(session, [row.call_id for row in rows if row.call_id], with_output=tools)
    return [_build_row(row, results) for row in rows]


def _build_row(row: Message, results: dict[str, tuple[SharedCallOutcome, str]]) -> TranscriptRow:
    said_for = row.origin in AUTOMATED_ORIGINS
    call = None
    if row.kind == Message.Kind.TOOL_CALL:
        outcome, output = results.get(row.call_id or "", ("stopped", ""))
        arguments = row.data.get("arguments") or {}
        call = CallWithResult(tool=str(row.data["tool"]), outcome=outcome, arguments=arguments, output=output)
    return TranscriptRow(
        kind=cast(RowKind, row.kind),
        created_at=payloads.format_timestamp(row.created_at),
        text="" if call else row.content,
        member="" if said_for else row.author,
        spoken=not said_for,
        attachments=tuple(str(one["file_id"]) for one in row.attachments),
        call=call,
    )


def _load_results(
    session: Session, call_ids: Sequence[str], *, with_output: bool
) -> dict[str, tuple[SharedCallOutcome, str]]:
    """How each call went; outputs are read only to be shown, and no further than they are."""
    found = Message.objects.filter(
        session=session, kind=Message.Kind.TOOL_RESULT, hidden="", call_id__in=call_ids
    )
    most = sharing_payloads.MAX_TOOL_CHARACTERS + 1 if with_output else 0
    found = found.annotate(head=Left("content", most)) if most else found.annotate(head=F("kind"))
    outcomes: dict[str, tuple[SharedCallOutcome, str]] = {}
    rows = found.values_list("call_id", "data__success", "data__cancelled", "head")
    for call_id, success, cancelled, head in rows:
        outcome: SharedCallOutcome = "done" if success else "stopped" if cancelled else "failed"
        outcomes[str(call_id)] = (outcome, head if most else "")
    return outcomes


# --- files -------------------------------------------------------------------------------------------


def _find_candidates(
    session: Session, payload: SharePayload, rows: Sequence[TranscriptRow], asked: ShareRequest, *, hold: bool
) -> list[FileCandidate]:
    """The owner's usable files that the payload names, in its order; all others are as if they were not there."""
    named = sharing_payloads.find_file_ids(payload)
    usable = WorkspaceFile.objects.filter(
        pk__in=named, owner=session.owner_id, deleted_at=None, purged_at=None, scan__in=files.USABLE_SCANS
    ).order_by("pk")  # one order for everybody who holds several
    if hold:
        usable = usable.select_for_update(no_key=True)
    own = sharing_payloads.find_own_file_ids(payload, rows)
    found = {str(file.pk): file for file in usable}
    return [
        FileCandidate(
            file=found[one], withheld=_withheld_reason(found[one], session, asked, vouched=one in own)
        )
        for one in named
        if one in found
    ]


def _withheld_reason(
    file: WorkspaceFile, session: Session, asked: ShareRequest, *, vouched: bool
) -> WithheldReason:
    """A text steered by a third party must not publish a file of another chat, nor one of the whole account."""
    if file.pk in asked.exclude_files:
        return "excluded"
    if file.source == WorkspaceFile.Source.TOOL_OUTPUT and not asked.include_tools:
        return "tool_output"
    here = file.session_id == session.pk or (file.session_id is None and vouched)
    return "" if here or file.pk in asked.include_files else "not_vouched_for"


def _finalize_draft(draft: ShareDraft) -> ShareDraft:
    payload = replace(draft.payload, files=[_to_public_file(file) for file in draft.list_public_files()])
    if not payload.messages:
        raise Conflict("Nothing in this conversation can be shown.", code="nothing_to_share")
    if len(msgspec.json.encode(payload)) > settings.SHARE_PAYLOAD_MAX_BYTES:
        raise _make_too_long_error(_byte_limit_message())
    return replace(draft, payload=payload)


def _to_public_file(file: WorkspaceFile) -> PublicFile:
    return PublicFile(id=str(file.pk), name=file.name, type=file.mime, size=file.size_bytes)
