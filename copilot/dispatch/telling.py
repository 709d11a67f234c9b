"""News of dispatch: each told after its row stands, and none undone because the log is away."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from billing import usage as billing_usage
from copilot import approvals, history, lost_calls, queries, questions, sessions, tasks, turns
from copilot.agent import mending
from copilot.events import (
    ApprovalDecided,
    Event,
    MessageAdded,
    MessageView,
    QuestionClosed,
    SessionChanged,
    TurnCancelled,
    TurnQueued,
)
from copilot.live import stream
from copilot.live.client import RedisDown
from copilot.models import Approval, Session
from copilot.tools.calls import STOPPED

log = logging.getLogger(__name__)

PAGE_TRIES = 5  # a turn that streams tells something every 30 ms, and a page is read in a few


def publish(
    session_id: UUID,
    user_id: int,
    happened: list[tuple[Event, str | None]],
    *,
    name: str = "",
    wake: UUID | None = None,
) -> str:
    """A failing log never undoes what is stored: clients catch up from the rows."""
    return sessions.tell(session_id, user_id, happened, name=name, wake=wake)


def announce(
    opening: turns.Opening,
    opened: turns.Opened,
    user_id: int,
    view: MessageView,
    *,
    queue_changed: bool = False,
) -> str:
    """Tell clients of a turn that waits for a worker, and wake one: in the same breath where it can be."""
    turn_id = str(opening.turn_id)
    placed = replace(
        view, sequence=opened.sequence, turn_id=turn_id, created_at=queries.instant(opened.created_at)
    )
    happened: list[tuple[Event, str | None]] = [(MessageAdded(message=placed), turn_id)]
    if queue_changed:
        happened.append((queries.queue_now(opening.session_id), None))
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
    together = tasks.wakes_by_list()
    wake = opening.turn_id if together else None
    cursor = publish(opening.session_id, user_id, happened, name=_beginning(opening.turn_id), wake=wake)
    if not together:
        tasks.send(opening.turn_id)
    return cursor


def announce_unannounced(session_id: UUID, turn_id: UUID) -> None:
    """Of a turn that ends before it began: who opened it may not have told of it yet, and need not any more."""
    queue: list[tuple[Event, str | None]] = [(queries.queue_now(session_id), None)]
    publish(session_id, owner_of(session_id), queue, name=_beginning(turn_id))
    publish_page(session_id)


def _beginning(turn_id: UUID) -> str:
    """Under this name the log takes the news of a turn's beginning once, whoever brings it."""
    return f"{turn_id}:queued"


def publish_page(session_id: UUID) -> bool:
    """The whole page anew, in the log itself: whoever died may have stored what it never told (T8.3).

    It stands in the log right behind the last event it knows of: what came since would be hidden by it.
    """
    owner_id = owner_of(session_id)
    try:
        for _ in range(PAGE_TRIES):
            snapshot, cursor = queries.snapshot(session_id, reset=True)
            told = stream.publish_now(str(session_id), [(snapshot, None)], user_id=owner_id, after=cursor)
            if told != stream.LATE:
                return True
    except RedisDown:
        log.warning("a page could not be told anew: Redis is away")
    sessions.note_untold(session_id)
    return False


def publish_queue(session_id: UUID) -> None:
    publish(session_id, owner_of(session_id), [(queries.queue_now(session_id), None)])


def announce_cancelled(
    session_id: UUID, turn_id: UUID, ended: turns.Ended, requests: Sequence[Approval] = ()
) -> None:
    """The notice and the ending of a turn that was stopped without its worker; nothing is left open or held."""
    owner_id = owner_of(session_id)
    billing_usage.settle(owner_id, str(turn_id))
    happened = closed(session_id, turn_id, STOPPED, cancelled=True)
    happened += [(_cancelled(row), str(turn_id)) for row in requests]
    notice_id = history.post_notice(session_id, turn_id, "stopped")
    happened += [
        (queries.notice_posted(notice_id, "stopped"), str(turn_id)),
        (TurnCancelled(run_ids=ended.run_ids, reason=ended.cancel_reason), str(turn_id)),
        *((news, None) for news in ended.news()),
    ]
    publish(session_id, owner_id, happened)


def closed(
    session_id: UUID, turn_id: UUID, result: str, *, cancelled: bool = False
) -> list[tuple[Event, str | None]]:
    """Rows, calls, questions and requests that a run left open are closed; what to tell of them."""
    lost_calls.settle(turn_id)
    happened = mending.close_open(session_id, turn_id, result, cancelled=cancelled)
    for question_id in questions.close_for_turn(turn_id, "cancelled"):
        happened.append(QuestionClosed(question_id=str(question_id), outcome="cancelled"))
    happened += [_cancelled(row) for row in approvals.close(turn_id, "cancelled")]
    return [(event, str(turn_id)) for event in happened]


def _cancelled(row: Approval) -> ApprovalDecided:
    return ApprovalDecided(approval_id=str(row.pk), state="cancelled", by="user")


def owner_of(session_id: UUID) -> int:
    return Session.objects.values_list("owner_id", flat=True).get(pk=session_id)
