"""A person asks for a shorter conversation, or one has filled its window: a turn of its own does it (A17.1, A17.6)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

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

log = logging.getLogger(__name__)

MAX_FOCUS_CHARACTERS = 2_000
COMPACTION_STARTED = "The conversation is being summarised."
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
    """On an idle session; a busy one is a conflict. What arrives meanwhile waits behind it."""
    selectors.get_session(user_id, session_id)
    check_usage_limit(user_id)
    held = lock_idle_session(session_id)
    if not message_history.has_content_to_compact(session_id):
        held.release()
        cursor = event_log.get_last_cursor(str(session_id))
        return CompactionResult(
            state="nothing_to_compact", turn_id=None, message=NOTHING_TO_COMPACT, cursor=cursor
        )
    cursor = _start_compaction_turn(held, user_id, focus=focus[:MAX_FOCUS_CHARACTERS], origin=origin)
    return CompactionResult(state="started", turn_id=held.turn_id, message=COMPACTION_STARTED, cursor=cursor)


def compact_after_turn(turn_id: UUID) -> None:
    """The turn that ended left a full window: shorten it while nobody waits; if somebody does, the next turn will."""
    turn = Turn.objects.select_related("session").get(pk=turn_id)
    try:
        request_compaction(turn.session.owner_id, turn.session_id)
    except (Conflict, TooManyRequests, ServiceUnavailable) as refused:
        log.info("session %s is not shortened now: %s", turn.session_id, type(refused).__name__)


def _start_compaction_turn(held: SessionLock, user_id: int, *, focus: str, origin: str) -> str:
    session_id = held.session_id
    try:
        place_hold(user_id, held.turn_id)
        opened = turns.open_compaction_turn(
            held.turn_id,
            held.token,
            session_id,
            origin=origin,
            focus=focus,
            accepted_through=held.keep_through,
        )
    except TooManyRequests:
        held.release()
        raise
    except IntegrityError as problem:
        release_hold(user_id, held.turn_id)
        lease.release_lease(str(session_id), str(held.token))
        raise build_session_busy_error() from problem
    except DatabaseError as problem:
        release_hold(user_id, held.turn_id)
        lease.release_lease(str(session_id), str(held.token))
        raise ServiceUnavailable from problem
    running = SessionChanged(
        title=opened.title,
        pinned=opened.pinned,
        archived=opened.archived,
        state="running",
        child=opened.child,
    )
    queued = TurnQueued(origin=origin, run_ids=[])
    cursor = publish_events(session_id, user_id, [(queued, str(held.turn_id)), (running, None)])
    tasks.wake_worker(held.turn_id)
    return cursor
