"""Turns that arrived together become this worker's in one visit to the database (T5.1)."""

from __future__ import annotations

import logging
from uuid import UUID

from copilot import turns, usage
from copilot.agent.preparing import Prepared, prepare
from copilot.providers import catalogue

log = logging.getLogger(__name__)


def claim_and_prepare(turn_ids: list[UUID], worker: str) -> list[tuple[turns.Claimed, Prepared | None]]:
    """A turn that comes alone is prepared in the same visit; of many, each prepares itself."""
    models = {
        tier: usage.Beginning(name=entry.name, provider=entry.provider, model=entry.model)
        for tier, entry in catalogue.tiers().items()
    }
    claimed = turns.claim(turn_ids, worker, models)
    alone = len(claimed) == 1 and not claimed[0].stopped
    return [(turn, _prepared(turn) if alone else None) for turn in claimed]


def _prepared(turn: turns.Claimed) -> Prepared | None:
    """None when it failed: the claimed turn is ours all the same, and its run tries again and can end it."""
    try:
        return prepare(turn)
    except Exception:
        log.exception("turn %s could not be prepared at once", turn.turn_id)
        return None
