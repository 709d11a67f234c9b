"""Tells other apps that a turn started, paused, asked or ended: the one call out of copilot, by configuration (TURN_HOOKS)."""

from __future__ import annotations

import logging
from typing import Literal, get_args
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils.module_loading import import_string

log = logging.getLogger(__name__)

TurnHookEvent = Literal["started", "asked", "ended"]
TURN_HOOK_EVENTS: frozenset[str] = frozenset(get_args(TurnHookEvent))

# What came by copilot's own doors is answered there: nobody else waits for it, and its turns pay for no call.
OWN_ORIGINS = frozenset({"web", "api"})


def has_turn_hooks(origin: str) -> bool:
    return origin not in OWN_ORIGINS and bool(settings.TURN_HOOKS)


def call_turn_hooks_on_commit(turn_id: UUID, origin: str, move: TurnHookEvent) -> None:
    """After commit, with the turn's id: it has started, paused to ask, or ended. May be told twice."""
    if has_turn_hooks(origin):
        transaction.on_commit(lambda: _call_turn_hooks(turn_id, move))


def parse_turn_hook(hook: str) -> tuple[str, frozenset[str]]:
    """A hook's dotted name, and the moves it wants to hear of: `name:asked|ended`, or all where none are said."""
    name, _, moves = hook.partition(":")
    return name, frozenset(moves.split("|")) if moves else TURN_HOOK_EVENTS


def _call_turn_hooks(turn_id: UUID, move: TurnHookEvent) -> None:
    for hook in settings.TURN_HOOKS:
        name, moves = parse_turn_hook(hook)
        if move not in moves:
            continue
        try:
            import_string(name)(turn_id)
        except Exception:
            log.exception("The hook %s failed for turn %s.", name, turn_id)
