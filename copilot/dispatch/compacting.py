"""A person asks for a shorter conversation, or one has filled its window: a turn of its own does it (A17.1, A17.6)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.db import DatabaseError, IntegrityError

from copilot import history, queries, tasks, turns
from copilot.dispatch.holding import Hold, busy, hold
from copilot.dispatch.limits import admit, check_limit, let_go
from copilot.dispatch.telling import publish
from copilot.errors import Conflict, TooMany, Unavailable
from copilot.events import SessionChanged, TurnQueued
from copilot.live import lease, stream
from copilot.models import Turn

log = logging.getLogger(__name__)

FOCUS_CHARACTERS = 2_000
STARTED = "The conversation is being summarised."
NOTHING = "There is nothing to summarise yet."


@dataclass(frozen=True, kw_only=True)
class Compacting:
    state: Literal["started", "nothing_to_compact"]
    turn_id: UUID | None
    message: str
    cursor: str


def compact(user_id: int, session_id: UUID, *, focus: str = "", origin: str = "web") -> Compacting:
    """On an idle session; a busy one is a conflict. What arrives meanwhile waits behind it."""
    queries.session_of(user_id, session_id)
    check_limit(user_id)
    held = hold(session_id)
    if not history.can_be_shortened(session_id):
        held.let_go()
        cursor = stream.last_cursor(str(session_id))
        return Compacting(state="nothing_to_compact", turn_id=None, message=NOTHING, cursor=cursor)
    cursor = _start(held, user_id, focus=focus[:FOCUS_CHARACTERS], origin=origin)
    return Compacting(state="started", turn_id=held.turn_id, message=STARTED, cursor=cursor)


def compact_after(turn_id: UUID) -> None:
    """The turn that ended left a full window: shorten it while nobody waits; if somebody does, the next turn will."""
    turn = Turn.objects.select_related("session").get(pk=turn_id)
    try:
        compact(turn.session.owner_id, turn.session_id)
    except (Conflict, TooMany, Unavailable) as refused:
        log.info("session %s is not shortened now: %s", turn.session_id, type(refused).__name__)


def _start(held: Hold, user_id: int, *, focus: str, origin: str) -> str:
    session_id = held.session_id
    try:
        admit(user_id, held.turn_id)
        opened = turns.open_compaction(
            held.turn_id,
            held.token,
            session_id,
            origin=origin,
            focus=focus,
            accepted_through=held.keep_through,
        )
    except TooMany:
        held.let_go()
        raise
    except IntegrityError as problem:
        let_go(user_id, held.turn_id)
        lease.give_back(str(session_id), str(held.token))
        raise busy() from problem
    except DatabaseError as problem:
        let_go(user_id, held.turn_id)
        lease.give_back(str(session_id), str(held.token))
        raise Unavailable from problem
    running = SessionChanged(
        title=opened.title,
        pinned=opened.pinned,
        archived=opened.archived,
        state="running",
        child=opened.child,
    )
    queued = TurnQueued(origin=origin, run_ids=[])
    cursor = publish(session_id, user_id, [(queued, str(held.turn_id)), (running, None)])
    tasks.send(held.turn_id)
    return cursor
