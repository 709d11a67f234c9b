"""A server goes away while a message is being placed: whether it was accepted all the same (T3.5, T9.3)."""

from __future__ import annotations

import logging
from uuid import UUID

from django.db import InterfaceError, OperationalError, connection

from copilot import history, turns
from copilot.dispatch.answers import Started
from copilot.errors import OutcomeUnknown, Unavailable
from copilot.live import stream
from copilot.live.client import RedisDown
from copilot.models import Message

log = logging.getLogger(__name__)

DATABASE_AWAY = (OperationalError, InterfaceError)
AWAY = (Unavailable, *DATABASE_AWAY, *RedisDown)


def accepted_or_refused(opening: turns.Opening, ignored: list[str]) -> Started:
    """Refused means that nothing of it stays; what a running turn has taken from the rows is accepted.

    The commit of a row may have succeeded although nobody heard of it, so the rows are asked anew.
    """
    if not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
    try:
        if history.discard(opening.message_id) or not _stands(opening.message_id):
            raise Unavailable
        return taken(opening, ignored)
    except DATABASE_AWAY as problem:
        log.warning("a message may have been accepted: the database went away meanwhile")
        raise OutcomeUnknown from problem


def taken(opening: turns.Opening, ignored: list[str]) -> Started:
    """The answer for a message that a turn took from the rows while its request was slow."""
    turn_id: UUID | None = Message.objects.values_list("turn_id", flat=True).get(pk=opening.message_id)
    return Started(
        message_id=opening.message_id,
        turn_id=opening.turn_id if turn_id is None else turn_id,
        run_id=opening.run_id,
        cursor=_last_cursor(opening.session_id),
        state="started" if turn_id in (None, opening.turn_id) or opening.run_id else "delivered",
        ignored_attachments=ignored,
    )


def _stands(message_id: UUID) -> bool:
    return Message.objects.filter(pk=message_id).exists()


def _last_cursor(session_id: UUID) -> str:
    try:
        return stream.last_cursor(str(session_id))
    except RedisDown:
        return stream.NO_CURSOR
