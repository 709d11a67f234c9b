"""Publish changes of a session to its event log, or mark the session for the sweep while Redis is away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal
from uuid import UUID

import structlog
from django.db import DatabaseError
from django.db.models.functions import Now

from billing.usage import limit_checks
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot import tasks
from copilot.agent import resume
from copilot.chat import approvals, messages, model_calls, questions, selectors, turn_transitions, turns
from copilot.chat.approvals import get_auto_approve
from copilot.models import Approval, Session
from copilot.realtime import event_log, payloads
from copilot.realtime.events import (
    ApprovalDecided,
    Event,
    MessageAdded,
    QuestionClosed,
    SessionChanged,
    TitleChanged,
    TurnCancelled,
    TurnQueued,
)
from copilot.realtime.payloads import MessagePayload, format_timestamp
from copilot.tools.calls import STOPPED_MESSAGE

log = structlog.get_logger(__name__)

# A streaming turn publishes something every 30 ms, and a snapshot takes a few of them to build.
MAX_SNAPSHOT_PUBLISH_ATTEMPTS = 5


def publish_events(
    session_id: UUID,
    user_id: int,
    events: Sequence[tuple[Event, str | None]],
    *,
    name: str = "",
    wake: UUID | None = None,
) -> str:
    """Publish events whose rows are committed, each with its turn, and return the cursor after them.

    A failed publish never fails the caller: the session is marked, and the sweep publishes a snapshot later.
    Events with a `name` are published once under that name. `wake` wakes a worker for a turn on the way.
    """
    try:
        return event_log.append_events(str(session_id), events, user_id=user_id, name=name, wake=wake)
    except REDIS_OUTAGE_ERRORS:
        log.warning("event_log_unreachable", session_id=session_id)
        mark_unpublished(session_id)
        return event_log.EMPTY_LOG_CURSOR


def mark_unpublished(*session_ids: UUID) -> None:
    try:
        Session.objects.filter(pk__in=session_ids).update(publish_failed_at=Now())
    except DatabaseError:
        log.warning("unpublished_sessions_not_marked", sessions=len(session_ids))


@dataclass(frozen=True)
class UnpublishedSession:
    session_id: UUID
    failed_at: datetime


def list_unpublished_sessions(limit: int = 200) -> list[UnpublishedSession]:
    rows = Session.objects.filter(publish_failed_at__isnull=False).order_by("publish_failed_at")
    return [
        UnpublishedSession(pk, at)
        for pk, at in rows.values_list("pk", "publish_failed_at")[:limit]
        if at is not None
    ]


def mark_published(unpublished: UnpublishedSession) -> None:
    """Clear the mark, unless another publish has failed since it was read."""
    Session.objects.filter(pk=unpublished.session_id, publish_failed_at=unpublished.failed_at).update(
        publish_failed_at=None
    )


def publish_session_change(
    session: Session, *, has_new_title: bool = False, has_new_auto_approve: bool = False
) -> str:
    state = selectors.get_session_state(session.pk)
    change = SessionChanged(
        title=session.title,
        pinned=session.pinned,
        archived=session.archived_at is not None,
        state=state,
        deleted=session.deleted_at is not None,
        child=session.depth > 0,
        auto_approve=get_auto_approve(session) if has_new_auto_approve else None,
        platform=session.platform,
        active_at=format_timestamp(session.active_at),
    )
    events: list[tuple[Event, str | None]] = [(change, None)]
    if has_new_title:
        origin: Literal["auto", "manual"] = "auto" if session.title_origin == "auto" else "manual"
        events.insert(0, (TitleChanged(title=session.title, origin=origin), None))
    return publish_events(session.pk, session.owner_id, events)


def announce_queued_turn(
    new_turn: turns.NewTurn,
    opened: turns.OpenedTurn,
    user_id: int,
    payload: MessagePayload,
    *,
    queue_changed: bool = False,
) -> str:
    turn_id = str(new_turn.turn_id)
    placed = replace(
        payload,
        sequence=opened.sequence,
        turn_id=turn_id,
        created_at=payloads.format_timestamp(opened.created_at),
    )
    events: list[tuple[Event, str | None]] = [(MessageAdded(message=placed), turn_id)]
    if queue_changed:
        events.append((selectors.get_queue(new_turn.session_id), None))
    events += [
        (TurnQueued(origin=new_turn.origin, run_ids=[new_turn.run_id] if new_turn.run_id else []), turn_id),
        (
            SessionChanged(
                title=opened.title,
                pinned=opened.pinned,
                archived=opened.archived,
                state="running",
                child=opened.child,
            ),
            None,
        ),
    ]
    together = tasks.uses_wakeup_list()
    wake = new_turn.turn_id if together else None
    cursor = publish_events(
        new_turn.session_id, user_id, events, name=_turn_queued_mark(new_turn.turn_id), wake=wake
    )
    if not together:
        tasks.wake_worker(new_turn.turn_id)
    return cursor


def announce_unstarted_turn(session_id: UUID, turn_id: UUID) -> None:
    """Publish a snapshot for a turn that ended before it began. Its opener need not announce it any more."""
    events: list[tuple[Event, str | None]] = [(selectors.get_queue(session_id), None)]
    publish_events(session_id, get_session_owner_id(session_id), events, name=_turn_queued_mark(turn_id))
    publish_snapshot(session_id)


def _turn_queued_mark(turn_id: UUID) -> str:
    """Name the events of a turn's beginning, so that the log takes them only once, even if two processes publish them."""
    return f"{turn_id}:queued"


def publish_snapshot(session_id: UUID) -> bool:
    """Append a fresh snapshot to the log, after a worker died that may have stored what it did not publish.

    It must follow directly on the last event it includes: it would hide any event between the two.
    """
    owner_id = get_session_owner_id(session_id)
    try:
        for _ in range(MAX_SNAPSHOT_PUBLISH_ATTEMPTS):
            snapshot, cursor = selectors.build_snapshot(session_id, reset=True)
            appended = event_log.append_events(
                str(session_id), [(snapshot, None)], user_id=owner_id, after=cursor
            )
            if appended != event_log.LOG_MOVED_ON:
                return True
    except REDIS_OUTAGE_ERRORS:
        log.warning("snapshot_not_published", session_id=session_id)
    mark_unpublished(session_id)
    return False


def publish_queue_change(session_id: UUID) -> None:
    publish_events(session_id, get_session_owner_id(session_id), [(selectors.get_queue(session_id), None)])


def announce_cancelled_turn(
    session_id: UUID, turn_id: UUID, ended: turn_transitions.EndedTurn, requests: Sequence[Approval] = ()
) -> None:
    """Publish notice and ending of a turn that was stopped without its worker, and close its open work."""
    owner_id = get_session_owner_id(session_id)
    limit_checks.release_turn_hold(owner_id, str(turn_id))
    events = close_open_work(session_id, turn_id, STOPPED_MESSAGE, cancelled=True)
    events += [(_build_cancelled_approval(row), str(turn_id)) for row in requests]
    notice_id = messages.post_notice(session_id, turn_id, "stopped")
    events += [
        (selectors.build_notice_posted(notice_id, "stopped"), str(turn_id)),
        (TurnCancelled(run_ids=ended.run_ids, reason=ended.cancel_reason), str(turn_id)),
        *((news, None) for news in ended.build_session_events()),
    ]
    publish_events(session_id, owner_id, events)


def close_open_work(
    session_id: UUID, turn_id: UUID, result: str, *, cancelled: bool = False
) -> list[tuple[Event, str | None]]:
    """Close the rows, calls, questions and approvals a run left open, and return the events about them."""
    model_calls.record_lost_calls(turn_id)
    events = resume.close_unfinished_work(session_id, turn_id, result, cancelled=cancelled)
    for question_id in questions.close_questions_of_turn(turn_id, "cancelled"):
        events.append(QuestionClosed(question_id=str(question_id), outcome="cancelled"))
    events += [_build_cancelled_approval(row) for row in approvals.close_approvals(turn_id, "cancelled")]
    return [(event, str(turn_id)) for event in events]


def _build_cancelled_approval(row: Approval) -> ApprovalDecided:
    return ApprovalDecided(approval_id=str(row.pk), state="cancelled", by="user")


def get_session_owner_id(session_id: UUID) -> int:
    return Session.objects.values_list("owner_id", flat=True).get(pk=session_id)
