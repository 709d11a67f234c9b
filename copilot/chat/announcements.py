"""What changed of a session is told in its log, or noted for the sweep when the log is away (T8.3)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal
from uuid import UUID

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

log = logging.getLogger(__name__)


def publish_or_mark_unpublished(
    session_id: UUID,
    user_id: int,
    happened: Sequence[tuple[Event, str | None]],
    *,
    name: str = "",
    wake: UUID | None = None,
) -> str:
    """Log what stands in the rows; when the log is away, the sweep tells the whole page once it is back."""
    try:
        return event_log.append_events(str(session_id), happened, user_id=user_id, name=name, wake=wake)
    except REDIS_OUTAGE_ERRORS:
        log.warning("the event log is unreachable; clients will catch up from the rows")
        mark_unpublished(session_id)
        return event_log.EMPTY_LOG_CURSOR


def mark_unpublished(*session_ids: UUID) -> None:
    """Something of these sessions stands in their rows and not in their logs."""
    try:
        Session.objects.filter(pk__in=session_ids).update(untold_at=Now())
    except DatabaseError:
        log.warning("what was not told could not be noted either: the database is away too")


@dataclass(frozen=True)
class UnpublishedSession:
    session_id: UUID
    failed_at: datetime


def list_unpublished_sessions(limit: int = 200) -> list[UnpublishedSession]:
    rows = Session.objects.filter(untold_at__isnull=False).order_by("untold_at")
    return [
        UnpublishedSession(pk, at) for pk, at in rows.values_list("pk", "untold_at")[:limit] if at is not None
    ]


def mark_published(one: UnpublishedSession) -> None:
    """Unless something went untold again meanwhile."""
    Session.objects.filter(pk=one.session_id, untold_at=one.failed_at).update(untold_at=None)


def publish_session_change(session: Session, *, titled: bool = False, allowed: bool = False) -> str:
    state = selectors.get_session_state(session.pk)
    change = SessionChanged(
        title=session.title,
        pinned=session.pinned,
        archived=session.archived_at is not None,
        state=state,
        deleted=session.deleted_at is not None,
        child=session.depth > 0,
        auto_approve=get_auto_approve(session) if allowed else None,
        platform=session.platform,
        active_at=format_timestamp(session.active_at),
    )
    happened: list[tuple[Event, str | None]] = [(change, None)]
    if titled:
        origin: Literal["auto", "manual"] = "auto" if session.title_origin == "auto" else "manual"
        happened.insert(0, (TitleChanged(title=session.title, origin=origin), None))
    return publish_or_mark_unpublished(session.pk, session.owner_id, happened)


# MERGED dispatch.telling: News of dispatch: each told after its row stands, and none undone because the log is away.

MAX_SNAPSHOT_PUBLISH_ATTEMPTS = (
    5  # a turn that streams tells something every 30 ms, and a page is read in a few
)


def publish_events(
    session_id: UUID,
    user_id: int,
    happened: list[tuple[Event, str | None]],
    *,
    name: str = "",
    wake: UUID | None = None,
) -> str:
    """A failing log never undoes what is stored: clients catch up from the rows."""
    return publish_or_mark_unpublished(session_id, user_id, happened, name=name, wake=wake)


def announce_queued_turn(
    opening: turns.NewTurn,
    opened: turns.OpenedTurn,
    user_id: int,
    view: MessagePayload,
    *,
    queue_changed: bool = False,
) -> str:
    """Tell clients of a turn that waits for a worker, and wake one: in the same breath where it can be."""
    turn_id = str(opening.turn_id)
    placed = replace(
        view,
        sequence=opened.sequence,
        turn_id=turn_id,
        created_at=payloads.format_timestamp(opened.created_at),
    )
    happened: list[tuple[Event, str | None]] = [(MessageAdded(message=placed), turn_id)]
    if queue_changed:
        happened.append((selectors.get_queue(opening.session_id), None))
    happened += [
        (TurnQueued(origin=opening.origin, run_ids=[opening.run_id] if opening.run_id else []), turn_id),
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
    wake = opening.turn_id if together else None
    cursor = publish_events(
        opening.session_id, user_id, happened, name=_turn_queued_mark(opening.turn_id), wake=wake
    )
    if not together:
        tasks.wake_worker(opening.turn_id)
    return cursor


def announce_unstarted_turn(session_id: UUID, turn_id: UUID) -> None:
    """Of a turn that ends before it began: who opened it may not have told of it yet, and need not any more."""
    queue: list[tuple[Event, str | None]] = [(selectors.get_queue(session_id), None)]
    publish_events(session_id, get_session_owner_id(session_id), queue, name=_turn_queued_mark(turn_id))
    publish_snapshot(session_id)


def _turn_queued_mark(turn_id: UUID) -> str:
    """Under this name the log takes the news of a turn's beginning once, whoever brings it."""
    return f"{turn_id}:queued"


def publish_snapshot(session_id: UUID) -> bool:
    """The whole page anew, in the log itself: whoever died may have stored what it never told (T8.3).

    It stands in the log right behind the last event it knows of: what came since would be hidden by it.
    """
    owner_id = get_session_owner_id(session_id)
    try:
        for _ in range(MAX_SNAPSHOT_PUBLISH_ATTEMPTS):
            snapshot, cursor = selectors.build_snapshot(session_id, reset=True)
            told = event_log.append_events(
                str(session_id), [(snapshot, None)], user_id=owner_id, after=cursor
            )
            if told != event_log.LOG_MOVED_ON:
                return True
    except REDIS_OUTAGE_ERRORS:
        log.warning("a page could not be told anew: Redis is away")
    mark_unpublished(session_id)
    return False


def publish_queue_change(session_id: UUID) -> None:
    publish_events(session_id, get_session_owner_id(session_id), [(selectors.get_queue(session_id), None)])


def announce_cancelled_turn(
    session_id: UUID, turn_id: UUID, ended: turn_transitions.EndedTurn, requests: Sequence[Approval] = ()
) -> None:
    """The notice and the ending of a turn that was stopped without its worker; nothing is left open or held."""
    owner_id = get_session_owner_id(session_id)
    limit_checks.release_turn_hold(owner_id, str(turn_id))
    happened = close_open_work(session_id, turn_id, STOPPED_MESSAGE, cancelled=True)
    happened += [(_build_cancelled_approval(row), str(turn_id)) for row in requests]
    notice_id = messages.post_notice(session_id, turn_id, "stopped")
    happened += [
        (selectors.build_notice_posted(notice_id, "stopped"), str(turn_id)),
        (TurnCancelled(run_ids=ended.run_ids, reason=ended.cancel_reason), str(turn_id)),
        *((news, None) for news in ended.build_session_events()),
    ]
    publish_events(session_id, owner_id, happened)


def close_open_work(
    session_id: UUID, turn_id: UUID, result: str, *, cancelled: bool = False
) -> list[tuple[Event, str | None]]:
    """Rows, calls, questions and requests that a run left open are closed; what to tell of them."""
    model_calls.record_lost_calls(turn_id)
    happened = resume.close_unfinished_work(session_id, turn_id, result, cancelled=cancelled)
    for question_id in questions.close_questions_of_turn(turn_id, "cancelled"):
        happened.append(QuestionClosed(question_id=str(question_id), outcome="cancelled"))
    happened += [_build_cancelled_approval(row) for row in approvals.close_approvals(turn_id, "cancelled")]
    return [(event, str(turn_id)) for event in happened]


def _build_cancelled_approval(row: Approval) -> ApprovalDecided:
    return ApprovalDecided(approval_id=str(row.pk), state="cancelled", by="user")


def get_session_owner_id(session_id: UUID) -> int:
    return Session.objects.values_list("owner_id", flat=True).get(pk=session_id)
