"""Compact a session by a turn of its own, on request or after a turn left its context window full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import structlog
from django.db import DatabaseError, IntegrityError

from config.core.errors import Conflict, ServiceUnavailable, TooManyRequests
from copilot import tasks
from copilot.chat import message_history, selectors, turns
from copilot.chat.admission_limits import check_usage_limit, place_hold, release_hold
from copilot.chat.announcements import publish_events
from copilot.chat.session_lock import SessionLock, build_session_busy_error, lock_idle_session
from copilot.models import Turn
from copilot.realtime import event_log, lease
from copilot.realtime.events import SessionChanged, TurnQueued

log = structlog.get_logger(__name__)

MAX_FOCUS_CHARACTERS = 2_000
COMPACTION_STARTED = "This chat is being summarised."
NOTHING_TO_COMPACT = "There is nothing to summarise yet."


@dataclass(frozen=True, kw_only=True)
class CompactionResult:
    state: Literal["started", "nothing_to_compact"]
    turn_id: UUID | None
    message: str
    cursor: str


def request_compaction(
    user_id: int, session_id: UUID, *, focus: str = "", origin: str = "web"
) -> CompactionResult:
    """Start a compaction turn on an idle session; raise Conflict on a busy one.

    New messages wait behind it.
    """
    selectors.get_session(user_id, session_id)
    check_usage_limit(user_id)
    lock = lock_idle_session(session_id)
    if not message_history.has_content_to_compact(session_id):
        lock.release()
        cursor = event_log.get_last_cursor(str(session_id))
        return CompactionResult(
            state="nothing_to_compact", turn_id=None, message=NOTHING_TO_COMPACT, cursor=cursor
        )
    cursor = _start_compaction_turn(lock, user_id, focus=focus[:MAX_FOCUS_CHARACTERS], origin=origin)
    return CompactionResult(state="started", turn_id=lock.turn_id, message=COMPACTION_STARTED, cursor=cursor)


def compact_after_turn(turn_id: UUID) -> None:
    """Compact a full context while nobody waits. If the session is busy again, its next turn compacts."""
    turn = Turn.objects.select_related("session").get(pk=turn_id)
    try:
        request_compaction(turn.session.owner_id, turn.session_id)
    except (Conflict, TooManyRequests, ServiceUnavailable) as refused:
        log.info("compaction_skipped", session_id=turn.session_id, reason=type(refused).__name__)


def _start_compaction_turn(lock: SessionLock, user_id: int, *, focus: str, origin: str) -> str:
    session_id = lock.session_id
    try:
        place_hold(user_id, lock.turn_id)
        opened = turns.open_compaction_turn(
            lock.turn_id,
            lock.token,
            session_id,
            origin=origin,
            focus=focus,
            accepted_through=lock.keep_through,
        )
    except TooManyRequests:
        lock.release()
        raise
    except IntegrityError as problem:
        release_hold(user_id, lock.turn_id)
        lease.release_lease(str(session_id), str(lock.token))
        raise build_session_busy_error() from problem
    except DatabaseError as problem:
        release_hold(user_id, lock.turn_id)
        lease.release_lease(str(session_id), str(lock.token))
        raise ServiceUnavailable from problem
    running = SessionChanged(
        title=opened.title,
        pinned=opened.pinned,
        archived=opened.archived,
        state="running",
        child=opened.child,
    )
    queued = TurnQueued(origin=origin, run_ids=[])
    cursor = publish_events(session_id, user_id, [(queued, str(lock.turn_id)), (running, None)])
    tasks.wake_worker(lock.turn_id)
    return cursor
