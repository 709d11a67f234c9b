"""Tells other apps that a turn started, paused, asked or ended: the one call out of copilot, by configuration (TURN_HOOKS)."""

from __future__ import annotations

import logging
from typing import Literal, get_args
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils.module_loading import import_string

log = logging.getLogger(__name__)

Move = Literal["started", "asked", "ended"]
MOVES: frozenset[str] = frozenset(get_args(Move))

# What came by copilot's own doors is answered there: nobody else waits for it, and its turns pay for no call.
OWN_DOORS = frozenset({"web", "api"})


def concerns_others(origin: str) -> bool:
    return origin not in OWN_DOORS and bool(settings.TURN_HOOKS)


def tell(turn_id: UUID, origin: str, move: Move) -> None:
    """After commit, with the turn's id: it has started, paused to ask, or ended. May be told twice."""
    if concerns_others(origin):
        transaction.on_commit(lambda: _call(turn_id, move))


def named(hook: str) -> tuple[str, frozenset[str]]:
    """A hook's dotted name, and the moves it wants to hear of: `name:asked|ended`, or all where none are said."""
    name, _, moves = hook.partition(":")
    return name, frozenset(moves.split("|")) if moves else MOVES


def _call(turn_id: UUID, move: Move) -> None:
    for hook in settings.TURN_HOOKS:
        name, moves = named(hook)
        if move not in moves:
            continue
        try:
            import_string(name)(turn_id)
        except Exception:
            log.exception("The hook %s failed for turn %s.", name, turn_id)
