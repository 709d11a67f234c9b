"""Call the functions of TURN_HOOKS when a turn starts, asks a person or ends, so that apps can react."""

from __future__ import annotations

from typing import Literal, get_args
from uuid import UUID

import structlog
from django.conf import settings
from django.db import transaction
from django.utils.module_loading import import_string

log = structlog.get_logger(__name__)

TurnHookEvent = Literal["started", "asked", "ended"]
TURN_HOOK_EVENTS: frozenset[str] = frozenset(get_args(TurnHookEvent))

# Turns of our own pages and API are answered there. No other app waits for them, so they pay for no call.
OWN_ORIGINS = frozenset({"web", "api"})


def has_turn_hooks(origin: str) -> bool:
    return origin not in OWN_ORIGINS and bool(settings.TURN_HOOKS)


def call_turn_hooks_on_commit(turn_id: UUID, origin: str, event: TurnHookEvent) -> None:
    """Call the hooks with the turn's id after the commit. A hook may be called twice for one event."""
    if has_turn_hooks(origin):
        transaction.on_commit(lambda: _call_turn_hooks(turn_id, event))


def parse_turn_hook(hook: str) -> tuple[str, frozenset[str]]:
    """Parse `name:asked|ended` into a dotted name and its events; without events a hook gets all of them."""
    name, _, events = hook.partition(":")
    return name, frozenset(events.split("|")) if events else TURN_HOOK_EVENTS


def _call_turn_hooks(turn_id: UUID, event: TurnHookEvent) -> None:
    for hook in settings.TURN_HOOKS:
        name, events = parse_turn_hook(hook)
        if event not in events:
            continue
        try:
            import_string(name)(turn_id)
        except Exception:
            log.exception("turn_hook_failed", hook=name, turn_id=turn_id)
