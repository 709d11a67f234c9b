"""Read sessions, messages, queues and snapshots for pages, sockets and other apps."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from django.conf import settings
from django.db.models import Case, Exists, OuterRef, Q, QuerySet, When
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Now

from config.core.db import fetch_all
from config.core.errors import InvalidRequest, NotFound
from copilot.chat.approvals import get_auto_approve
from copilot.chat.commands import REQUEST_LIMITS
from copilot.chat.serializers import (
    list_open_approvals,
    list_open_questions,
    serialize_context,
    serialize_goal,
    serialize_messages,
    serialize_notice,
)
from copilot.files import artifacts
from copilot.models import Approval, Message, Question, Session, Turn
from copilot.realtime import event_log
from copilot.realtime.event_log import read_streamed_text
from copilot.realtime.events import (
    NoticePosted,
    QueueChanged,
    SessionChanged,
    SessionSnapshot,
    ThrottleReason,
)
from copilot.realtime.payloads import (
    AttachmentPayload,
    MessagePayload,
    QueueItem,
    SessionState,
    Todo,
    TurnPayload,
    format_timestamp,
)

MESSAGES_PER_PAGE = 50
_LIST_ORDER = ("-pinned", "-active_at", "pk")  # of sessions
SHOWN_KINDS = ("user", "assistant", "reasoning", "tool_call", "tool_result", "summary", "notice")
# Only answers of succeeded turns have a duration, and only where the ending recorded one.
_TURN_DURATION_MS = Case(
    When(
        kind="assistant",
        turn__status=Turn.Status.SUCCEEDED,
        then=KeyTransform("duration_ms", "turn__summary"),
    )
)

T = TypeVar("T")
UnfinishedStatus = Literal["queued", "running", "waiting"]


@dataclass(frozen=True, kw_only=True)
class CursorPage(Generic[T]):
    items: list[T]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True)
class SessionPayload:
    id: str
    title: str
    state: SessionState
    pinned: bool
    archived: bool
    created_at: str
    active_at: str
    parent_id: str | None = None
    platform: str = ""  # the chat platform it began on


# --- Sessions ----------------------------------------------------------------------------------------


def get_session(user_id: int, session_id: UUID) -> Session:
    """Return the user's session; raise NotFound for unknown, deleted and other people's sessions alike."""
    session = Session.objects.visible_to(user_id).filter(pk=session_id).first()
    if session is None:
        raise NotFound
    return session


def get_session_state(session_id: UUID) -> SessionState:
    return _get_session_states([session_id]).get(session_id, "idle")


def _get_session_states(session_ids: Iterable[UUID]) -> dict[UUID, SessionState]:
    open_questions = Question.objects.open().filter(turn=OuterRef("pk"))
    rows = Turn.objects.unfinished().filter(session__in=list(session_ids))
    return {
        session_id: "waiting" if waits or status == Turn.Status.WAITING else "running"
        for session_id, status, waits in rows.values_list("session_id", "status", Exists(open_questions))
    }


def serialize_session(session: Session, state: SessionState | None = None) -> SessionPayload:
    return SessionPayload(
        id=str(session.pk),
        title=session.title,
        state=state or get_session_state(session.pk),
        pinned=session.pinned,
        archived=session.archived_at is not None,
        created_at=format_timestamp(session.created_at),
        active_at=format_timestamp(session.active_at),
        parent_id=str(session.parent_id) if session.parent_id else None,
        platform=session.platform,
    )


def build_session_changed(session_id: UUID, state: SessionState | None = None) -> SessionChanged:
    """Build the event for session lists. Sub-sessions get one too, although lists leave them out."""
    session = Session.objects.get(pk=session_id)
    return SessionChanged(
        title=session.title,
        pinned=session.pinned,
        archived=session.archived_at is not None,
        state=state or get_session_state(session_id),
        child=session.depth > 0,
    )


def list_sessions_page(
    user_id: int,
    *,
    cursor: str | None = None,
    q: str = "",
    archived: bool = False,
    parent_id: UUID | None = None,
    limit: int = REQUEST_LIMITS.sessions_per_page,
) -> CursorPage[SessionPayload]:
    rows_query = Session.objects.visible_to(user_id).filter(archived_at__isnull=not archived)
    rows_query = rows_query.filter(depth=0) if parent_id is None else rows_query.filter(parent=parent_id)
    if q:
        rows_query = rows_query.filter(title__icontains=q)
    if cursor:
        pinned, active_at, identifier = _decode_page_cursor(cursor)
        same = Q(pinned=pinned) & (Q(active_at__lt=active_at) | Q(active_at=active_at, pk__gt=identifier))
        rows_query = rows_query.filter(same | Q(pinned=False) if pinned else same)
    # Ids come from an index that holds all that is asked here. Asked for whole rows, the planner would rather sort all
    # sessions of the user, because most users have few.
    listed = rows_query.order_by(*_LIST_ORDER)[: limit + 1].values("pk")
    rows = list(Session.objects.filter(pk__in=listed).order_by(*_LIST_ORDER))
    states = _get_session_states(row.pk for row in rows)
    items = [serialize_session(row, states.get(row.pk, "idle")) for row in rows[:limit]]
    return CursorPage(
        items=items, next_cursor=_encode_page_cursor(rows[limit - 1]) if len(rows) > limit else None
    )


def list_deleted_sessions(user_id: int) -> QuerySet[Session]:
    """Return chats that can be restored, the last deleted first; those without a message are left out."""
    cutoff = Now() - timedelta(days=settings.SESSION_TRASH_DAYS)
    rows = Session.objects.filter(owner=user_id, depth=0, deleted_at__gt=cutoff)
    return rows.filter(Exists(Message.objects.filter(session=OuterRef("pk")))).order_by("-deleted_at", "pk")


def _encode_page_cursor(session: Session) -> str:
    text = f"{int(session.pinned)}|{session.active_at.isoformat()}|{session.pk}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode_page_cursor(cursor: str) -> tuple[bool, datetime, UUID]:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        pinned, active_at, identifier = text.split("|")
        moment = datetime.fromisoformat(active_at)
        if moment.tzinfo is None:
            raise ValueError("no zone")
        return pinned == "1", moment, UUID(identifier)
    except ValueError as problem:
        raise InvalidRequest("The cursor is not valid for this list.", code="invalid_cursor") from problem


# --- Messages ----------------------------------------------------------------------------------------


def build_notice_posted(row_id: UUID, code: str) -> NoticePosted:
    [message] = serialize_messages_by_id([row_id])
    content = serialize_notice(code)
    return NoticePosted(
        row_id=str(row_id),
        code=code,
        label=content.label,
        hint=content.hint,
        action=content.action,
        details=content.details,
        message=message,
    )


def list_messages_page(
    session_id: UUID, *, before: int | None = None, limit: int = MESSAGES_PER_PAGE
) -> tuple[list[MessagePayload], bool]:
    rows = Message.objects.visible().filter(session=session_id, kind__in=SHOWN_KINDS)
    if before is not None:
        rows = rows.filter(sequence__lt=before)
    newest = list(rows.annotate(turn_ms=_TURN_DURATION_MS).order_by("-sequence")[: limit + 1])
    return serialize_messages(newest[:limit][::-1]), len(newest) > limit


def serialize_messages_by_id(message_ids: Iterable[UUID]) -> list[MessagePayload]:
    rows = list(Message.objects.filter(pk__in=list(message_ids)).order_by("sequence"))
    return serialize_messages(rows)


# The version grows with every transaction that this read sees and an earlier read did not: it is the newest
# transaction that has ended, less the earlier ones that have not.
_SELECT_QUEUE = """
SELECT pg_snapshot_xmax(seen)::text::bigint * 1024 - LEAST((SELECT count(*) FROM pg_snapshot_xip(seen)), 1023)
       AS version, m.id, m.content, m.run_id, m.attachments
FROM (SELECT pg_current_snapshot() AS seen) s
LEFT JOIN copilot_message m ON m.session_id = %s AND m.sequence IS NULL AND m.dropped_at IS NULL
ORDER BY m.queue_order, m.accept_number
"""


class _QueueRow(NamedTuple):
    version: int
    id: UUID | None  # null in the only row of an empty queue
    content: str
    run_id: str | None
    attachments: str | None


def get_queue(session_id: UUID) -> QueueChanged:
    """Return the queued messages in order, with a version that tells which of two reads is newer."""
    rows = fetch_all(_QueueRow, _SELECT_QUEUE, [session_id])
    queued = [row for row in rows if row.id is not None]
    items = [
        QueueItem(
            id=str(row.id),
            text=row.content,
            run_id=row.run_id,
            position=position,
            attachments=msgspec.json.decode(row.attachments or "[]", type=list[AttachmentPayload]),
        )
        for position, row in enumerate(queued, start=1)
    ]
    return QueueChanged(items=items, version=rows[0].version)


def get_queue_items(session_id: UUID) -> list[QueueItem]:
    return get_queue(session_id).items


def was_approved(turn_id: UUID, call_id: str) -> bool:
    approved_states = (Approval.State.APPROVED, Approval.State.RUNNING)
    return Approval.objects.filter(
        turn=turn_id, call_id=call_id, state__in=approved_states, automatic=False
    ).exists()


# --- Turns -------------------------------------------------------------------------------------------


def get_turn(user_id: int, turn_id: UUID) -> Turn:
    turn = Turn.objects.visible_to(user_id).filter(pk=turn_id).first()
    if turn is None:
        raise NotFound
    return turn


# --- Snapshots ---------------------------------------------------------------------------------------


def build_snapshot(session_id: UUID, *, reset: bool = False) -> tuple[SessionSnapshot, str]:
    """Build everything a client needs to show the session, and the cursor to resume from.

    The cursor is read before the rows, so events after it may already be in them; applying one twice is
    harmless.
    """
    cursor = event_log.get_last_cursor(str(session_id))
    session = Session.objects.get(pk=session_id)
    messages, has_older = list_messages_page(session_id)
    messages = _with_streamed_text(session_id, messages)
    turn = _serialize_unfinished_turn(session_id)
    if turn is not None:
        turn_messages = [message for message in messages if message.turn_id == turn.id]
        messages = [message for message in messages if message.turn_id != turn.id]
        turn = replace(turn, messages=turn_messages)
    questions = list_open_questions(session_id) if turn is not None else []
    queue = get_queue(session_id)
    approvals = list_open_approvals(session_id) if turn is not None and turn.status == "waiting" else []
    snapshot = SessionSnapshot(
        messages=messages,
        turn=turn,
        queue=queue.items,
        queue_version=queue.version,
        questions=questions,
        approvals=approvals,
        auto_approve=get_auto_approve(session),
        artifacts=artifacts.list_session_artifacts(session_id),
        todos=[msgspec.convert(item, Todo) for item in session.todos],
        goal=serialize_goal(session),
        context=serialize_context(session),
        title=session.title,
        state=_derive_session_state(turn, has_questions=bool(questions)),
        reset=reset,
        has_older=has_older,
    )
    return snapshot, cursor


def _derive_session_state(turn: TurnPayload | None, *, has_questions: bool) -> SessionState:
    if turn is None:
        return "idle"
    return "waiting" if has_questions or turn.status == "waiting" else "running"


def _serialize_unfinished_turn(session_id: UUID) -> TurnPayload | None:
    turn = Turn.objects.unfinished().filter(session=session_id).first()
    if turn is None:
        return None
    return TurnPayload(
        id=str(turn.pk),
        status=msgspec.convert(turn.status, UnfinishedStatus),
        origin=turn.origin,
        run_ids=list(turn.run_ids),
        attempt=turn.attempts,
        messages=[],
        throttle=get_throttle_reason(turn) if turn.status == Turn.Status.QUEUED and turn.throttled_by else "",
    )


def get_throttle_reason(turn: Turn) -> ThrottleReason:
    return "address" if turn.throttled_by == Turn.Throttle.ADDRESS else "user"


def _with_streamed_text(session_id: UUID, rows: list[MessagePayload]) -> list[MessagePayload]:
    saved = {row.id: row.content for row in rows if row.streaming and isinstance(row.content, str)}
    if not saved:
        return rows
    streamed = read_streamed_text(str(session_id), saved)
    return [replace(row, content=streamed[row.id]) if row.id in streamed else row for row in rows]
