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

from copilot import queries
from copilot.errors import Conflict, NotFound, TooLarge
from copilot.models import Message, Session, WorkspaceFile
from copilot.workspace import files, publication
from copilot.workspace.publication import Call, Included, Outcome, Payload, PublicFile, Row

SAID_FOR_THE_OWNER = ("schedule", "goal", "parent")  # origins of messages that no person wrote

Withheld = Literal["", "excluded", "not_vouched_for", "tool_output"]
Kind = Literal["user", "assistant", "reasoning", "tool_call"]


@dataclass(frozen=True, kw_only=True)
class Asked:
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
class Candidate:
    """A file of the owner's that the payload names."""

    file: WorkspaceFile
    withheld: Withheld = ""  # why it does not become public


@dataclass(frozen=True, kw_only=True)
class Draft:
    payload: Payload
    through_sequence: int
    candidates: list[Candidate]

    def public_files(self) -> list[WorkspaceFile]:
        return [one.file for one in self.candidates if not one.withheld]


def of_session(session: Session, asked: Asked, *, hold_files: bool = False) -> Draft:
    """`hold_files`: they stay as they are until the transaction ends."""
    shown = _shown(session, asked)
    _check_length(shown)
    rows = list(shown.order_by("sequence").defer("server_context", "replay"))
    if not rows:
        raise Conflict("Nothing in this conversation is finished yet.", code="nothing_to_share")
    published = _rows(session, rows, tools=asked.include_tools)
    payload = publication.payload_of(
        published,
        title=asked.title or session.title,
        included=Included(reasoning=asked.include_reasoning, tools=asked.include_tools),
    )
    candidates = _candidates(session, payload, published, asked, hold=hold_files)
    draft = Draft(payload=payload, through_sequence=rows[-1].sequence or 0, candidates=candidates)
    return _settled(draft)


def of_file(file: WorkspaceFile) -> Payload:
    return Payload(kind="file", title=file.name, files=[_public(file)])


def author_line(user: User) -> str:
    """As others may know them; never the e-mail address."""
    name = user.get_full_name().strip() or user.get_username()
    return name.partition("@")[0]


# --- rows --------------------------------------------------------------------------------------------


def _shown(session: Session, asked: Asked) -> QuerySet[Message]:
    """Finished rows at or before the place asked for, of the kinds that a share can show."""
    kinds = [Message.Kind.USER, Message.Kind.ASSISTANT, Message.Kind.TOOL_CALL]
    if asked.include_reasoning:
        kinds.append(Message.Kind.REASONING)
    ended = Q(turn__isnull=True) | Q(turn__ended_at__isnull=False)
    rows = Message.objects.filter(
        ended, session=session, hidden="", sequence__isnull=False, kind__in=kinds, streaming=False
    )
    return rows if asked.through is None else rows.filter(sequence__lte=_place_of(session, asked.through))


def _place_of(session: Session, message_id: UUID) -> int:
    rows = Message.objects.filter(pk=message_id, session=session, hidden="", sequence__isnull=False)
    place = rows.values_list("sequence", flat=True).first()
    if place is None:
        raise NotFound("There is no such message in this conversation.")
    return place


def _check_length(rows: QuerySet[Message]) -> None:
    """Before anything is read: a conversation may be longer than a process has memory."""
    found = rows.aggregate(count=Count("pk"), characters=Sum(Length("content")))
    if found["count"] > settings.SHARE_MESSAGES_MAX:
        raise _too_long(f"It has {found['count']:,} messages; {settings.SHARE_MESSAGES_MAX:,} can be shared.")
    if (found["characters"] or 0) > settings.SHARE_PAYLOAD_MAX_BYTES:
        raise _too_long(_bytes_allowed())


def _too_long(how: str) -> TooLarge:
    return TooLarge(
        f"This conversation is too long to share. {how}",
        code="too_long_to_share",
        hint="Share up to an earlier message with `through`.",
        limit_messages=settings.SHARE_MESSAGES_MAX,
        limit_bytes=settings.SHARE_PAYLOAD_MAX_BYTES,
    )


def _bytes_allowed() -> str:
    return f"A share holds {settings.SHARE_PAYLOAD_MAX_BYTES:,} bytes."


def _rows(session: Session, rows: Sequence[Message], *, tools: bool) -> list[Row]:
    results = _results(session, [row.call_id for row in rows if row.call_id], with_output=tools)
    return [_row(row, results) for row in rows]


def _row(row: Message, results: dict[str, tuple[Outcome, str]]) -> Row:
    said_for = row.origin in SAID_FOR_THE_OWNER
    call = None
    if row.kind == Message.Kind.TOOL_CALL:
        outcome, output = results.get(row.call_id or "", ("stopped", ""))
        arguments = row.data.get("arguments") or {}
        call = Call(tool=str(row.data["tool"]), outcome=outcome, arguments=arguments, output=output)
    return Row(
        kind=cast(Kind, row.kind),
        created_at=queries.instant(row.created_at),
        text="" if call else row.content,
        member="" if said_for else row.author,
        spoken=not said_for,
        attachments=tuple(str(one["file_id"]) for one in row.attachments),
        call=call,
    )


def _results(
    session: Session, call_ids: Sequence[str], *, with_output: bool
) -> dict[str, tuple[Outcome, str]]:
    """How each call went; outputs are read only to be shown, and no further than they are."""
    found = Message.objects.filter(
        session=session, kind=Message.Kind.TOOL_RESULT, hidden="", call_id__in=call_ids
    )
    most = publication.TOOL_CHARACTERS + 1 if with_output else 0
    found = found.annotate(head=Left("content", most)) if most else found.annotate(head=F("kind"))
    outcomes: dict[str, tuple[Outcome, str]] = {}
    rows = found.values_list("call_id", "data__success", "data__cancelled", "head")
    for call_id, success, cancelled, head in rows:
        outcome: Outcome = "done" if success else "stopped" if cancelled else "failed"
        outcomes[str(call_id)] = (outcome, head if most else "")
    return outcomes


# --- files -------------------------------------------------------------------------------------------


def _candidates(
    session: Session, payload: Payload, rows: Sequence[Row], asked: Asked, *, hold: bool
) -> list[Candidate]:
    """The owner's usable files that the payload names, in its order; all others are as if they were not there."""
    named = publication.file_ids(payload)
    usable = WorkspaceFile.objects.filter(
        pk__in=named, owner=session.owner_id, deleted_at=None, purged_at=None, scan__in=files.USABLE
    ).order_by("pk")  # one order for everybody who holds several
    if hold:
        usable = usable.select_for_update(no_key=True)
    own = publication.own_file_ids(payload, rows)
    found = {str(file.pk): file for file in usable}
    return [
        Candidate(file=found[one], withheld=_withheld(found[one], session, asked, vouched=one in own))
        for one in named
        if one in found
    ]


def _withheld(file: WorkspaceFile, session: Session, asked: Asked, *, vouched: bool) -> Withheld:
    """A text steered by a third party must not publish a file of another chat, nor one of the whole account."""
    if file.pk in asked.exclude_files:
        return "excluded"
    if file.source == WorkspaceFile.Source.TOOL_OUTPUT and not asked.include_tools:
        return "tool_output"
    here = file.session_id == session.pk or (file.session_id is None and vouched)
    return "" if here or file.pk in asked.include_files else "not_vouched_for"


def _settled(draft: Draft) -> Draft:
    payload = replace(draft.payload, files=[_public(file) for file in draft.public_files()])
    if not payload.messages:
        raise Conflict("Nothing in this conversation can be shown.", code="nothing_to_share")
    if len(msgspec.json.encode(payload)) > settings.SHARE_PAYLOAD_MAX_BYTES:
        raise _too_long(_bytes_allowed())
    return replace(draft, payload=payload)


def _public(file: WorkspaceFile) -> PublicFile:
    return PublicFile(id=str(file.pk), name=file.name, type=file.mime, size=file.size_bytes)
