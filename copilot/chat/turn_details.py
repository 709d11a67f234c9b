"""Read what other apps may know and show of a turn: owner, origin, status, messages, requests and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec
from django.db.models import Q
from django.db.models.functions import Now

from copilot.chat import model_calls, selectors, serializers
from copilot.chat.turn_context import InboundContext, ReplyAddress
from copilot.files import artifacts
from copilot.models import Approval, Message, Question, Turn
from copilot.realtime import event_log
from copilot.realtime.payloads import ApprovalPayload, ArtifactPayload, MessagePayload, QuestionPayload


@dataclass(frozen=True, kw_only=True)
class TurnDetails:
    turn_id: UUID
    session_id: UUID
    owner_id: int
    status: str
    origin: str
    run_ids: tuple[str, ...]
    inbound_context: InboundContext
    created_at: datetime
    ended_at: datetime | None
    failure_code: str
    cancel_reason: str
    limit_code: str
    is_session_deleted: bool

    @property
    def has_ended(self) -> bool:
        return self.status in Turn.ENDINGS

    @property
    def reply(self) -> ReplyAddress | None:
        return self.inbound_context.reply


@dataclass(frozen=True, kw_only=True)
class PendingPlatformMessage:
    """A message of a chat platform that no turn has taken yet."""

    message_id: UUID
    run_id: str | None
    speaker: str


def get_turn_details(turn_id: UUID) -> TurnDetails | None:
    return _find_turn_details(Q(pk=turn_id))


def get_turn_of_approval(approval_id: UUID) -> TurnDetails | None:
    return _find_turn_details(Q(approvals=approval_id))


def get_turn_of_question(question_id: UUID) -> TurnDetails | None:
    return _find_turn_details(Q(questions=question_id))


def get_unfinished_turn(session_id: UUID) -> TurnDetails | None:
    return _find_turn_details(Q(session=session_id, status__in=Turn.UNFINISHED))


def list_turns_waiting_since(*, seconds: float, within: float) -> list[UUID]:
    age, now = timedelta(seconds=seconds), Now()
    requests = Approval.objects.requested().filter(
        turn__status=Turn.Status.WAITING,
        created_at__lte=now - age,
        created_at__gt=now - age - timedelta(seconds=within),
    )
    return list(requests.values_list("turn_id", flat=True).distinct()[:200])


# Read several times for every message of a chat platform: two whole model objects would cost more than the query.
_COPIED_FIELDS = (
    *("session_id", "status", "origin", "created_at", "ended_at", "failure_code", "cancel_reason"),
    "limit_code",
)


def _find_turn_details(condition: Q) -> TurnDetails | None:
    fields = ("pk", "run_ids", "inbound_context", "session__owner_id", "session__deleted_at", *_COPIED_FIELDS)
    row = Turn.objects.filter(condition).values(*fields).first()
    if row is None:
        return None
    return TurnDetails(
        turn_id=row["pk"],
        owner_id=row["session__owner_id"],
        run_ids=tuple(row["run_ids"]),
        inbound_context=msgspec.convert(row["inbound_context"], InboundContext),
        is_session_deleted=row["session__deleted_at"] is not None,
        **{name: row[name] for name in _COPIED_FIELDS},
    )


def find_turn_of_run(session_id: UUID, run_id: str) -> UUID | Literal["waiting", "gone"]:
    message = Message.objects.filter(session=session_id, run_id=run_id).only("turn_id", "dropped_at").first()
    if message is None or message.dropped_at is not None:
        return "gone"
    return "waiting" if message.turn_id is None else message.turn_id


def find_session_of_run(session_ids: Sequence[UUID], run_id: str) -> UUID | None:
    rows = Message.objects.filter(session__in=session_ids, run_id=run_id)
    return rows.values_list("session_id", flat=True).first()


def list_pending_platform_messages(session_id: UUID) -> list[PendingPlatformMessage]:
    rows = Message.objects.queued().filter(session=session_id, data__has_key="inbound_context")
    return [
        PendingPlatformMessage(message_id=pk, run_id=run_id, speaker=inbound_context.reply.speaker)
        for pk, run_id, data in rows.order_by("queue_order").values_list("pk", "run_id", "data")
        if (inbound_context := msgspec.convert(data["inbound_context"], InboundContext)).reply is not None
    ]


def list_message_ids_by_origin(turn_id: UUID, origin: str) -> set[str]:
    rows = Message.objects.filter(turn=turn_id, kind=Message.Kind.USER, origin=origin)
    return {str(pk) for pk in rows.values_list("pk", flat=True)}


def get_answer_text(turn_id: UUID) -> str:
    rows = Message.objects.filter(turn=turn_id, kind=Message.Kind.ASSISTANT, hidden="").order_by("sequence")
    return "\n\n".join(text for text in rows.values_list("content", flat=True) if text)


def get_cost_microdollars(turn_id: UUID) -> int:
    return model_calls.get_turn_spending(turn_id).spent


# --- Showing a turn ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TurnRequests:
    """Approvals and questions, each with its state; `requested` and `open` still wait for an answer."""

    approvals: list[tuple[ApprovalPayload, str]]
    questions: list[tuple[QuestionPayload, str]]


def serialize_turn_messages(turn_id: UUID) -> list[MessagePayload]:
    shown = Message.objects.filter(turn=turn_id, hidden="", kind__in=selectors.SHOWN_KINDS)
    rows = list(shown.exclude(kind=Message.Kind.USER).order_by("sequence"))
    payloads = [serializers.serialize_message(row) for row in rows]
    saved = {row.id: row.content for row in payloads if row.streaming and isinstance(row.content, str)}
    if not saved:
        return payloads
    streamed = event_log.read_streamed_text(str(rows[0].session_id), saved)
    return [replace(row, content=streamed[row.id]) if row.id in streamed else row for row in payloads]


def list_turn_artifacts(turn_id: UUID) -> list[ArtifactPayload]:
    return artifacts.list_turn_artifacts(turn_id)


def list_turn_requests(turn_id: UUID) -> TurnRequests:
    # Automatic approvals were asked of nobody.
    rows = list(Approval.objects.filter(turn=turn_id, automatic=False).order_by("created_at", "position"))
    questions = Question.objects.filter(turn=turn_id).order_by("created_at")
    states = [row.state for row in rows]
    return TurnRequests(
        approvals=list(zip(serializers.serialize_approvals(rows), states, strict=True)),
        questions=[(serializers.serialize_question(row), row.outcome) for row in questions],
    )
