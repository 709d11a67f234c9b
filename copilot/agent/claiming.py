"""Turns that arrived together become this worker's in one visit to the database (T5.1)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from uuid import UUID

from copilot import queries, sessions, turns, usage
from copilot.agent.preparing import Prepared, prepare
from copilot.events import TurnThrottled
from copilot.models import Turn
from copilot.ports import send_turn
from copilot.providers import catalogue

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The turns to run here, and those that a worker found at a cap for the first time."""

    runs: list[tuple[turns.Claimed, Prepared | None]]
    throttled: list[UUID]


def claim_and_prepare(turn_ids: list[UUID], worker: str) -> Taken:
    """A turn that comes alone is prepared in the same visit; of many, each prepares itself."""
    models = {
        tier: usage.Beginning(name=entry.name, provider=entry.provider, model=entry.model)
        for tier, entry in catalogue.tiers().items()
    }
    found = turns.claim(turn_ids, worker, models)
    for turn_id in found.startable:
        send_turn(turn_id)
    alone = len(found.claimed) == 1 and not found.claimed[0].stopped
    runs = [(turn, _prepared(turn) if alone else None) for turn in found.claimed]
    return Taken(runs=runs, throttled=found.throttled)


def publish_throttled(turn_ids: list[UUID]) -> None:
    """Tell clients why these turns do not begin yet; those that have begun meanwhile need no word."""
    waiting = Turn.objects.filter(pk__in=turn_ids, status=turns.QUEUED).exclude(throttle="")
    for turn in waiting.select_related("session"):
        event = TurnThrottled(reason=queries.throttle_of(turn))
        sessions.tell(turn.session_id, turn.session.owner_id, [(event, str(turn.pk))])


def _prepared(turn: turns.Claimed) -> Prepared | None:
    """None when it failed: the claimed turn is ours all the same, and its run tries again and can end it."""
    try:
        return prepare(turn)
    except Exception:
        log.exception("turn %s could not be prepared at once", turn.turn_id)
        return None
