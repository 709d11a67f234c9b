"""What the doors are told of a message or a stop."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from django.db import InterfaceError, OperationalError, connection

from config.core.errors import OutcomeUnknown, ServiceUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.chat import messages, turns
from copilot.models import Message
from copilot.realtime import event_log, lease


@dataclass(frozen=True, kw_only=True)
class SubmissionStarted:
    """In the conversation: a turn of its own began, or the running one had taken it already (A30.7)."""

    message_id: UUID
    turn_id: UUID
    run_id: str | None
    cursor: str
    state: Literal["started", "delivered"] = "started"
    ignored_attachments: list[str] = field(default_factory=list)
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class SubmissionQueued:
    message_id: UUID
    turn_id: UUID  # the turn it waits behind
    run_id: str | None
    position: int
    cursor: str
    capacity: int = lease.QUEUE_CAPACITY
    state: Literal["queued"] = "queued"
    ignored_attachments: list[str] = field(default_factory=list)
    hint: str = ""


# MERGED dispatch.outages: A server goes away while a message is being placed: whether it was accepted all the same (T3.5, T9.3).

log = logging.getLogger(__name__)

DATABASE_OUTAGE_ERRORS = (OperationalError, InterfaceError)
OUTAGE_ERRORS = (ServiceUnavailable, *DATABASE_OUTAGE_ERRORS, *REDIS_OUTAGE_ERRORS)


def resolve_after_outage(opening: turns.NewTurn, ignored: list[str]) -> SubmissionStarted:
    """Refused means that nothing of it stays; what a running turn has taken from the rows is accepted.

    The commit of a row may have succeeded although nobody heard of it, so the rows are asked anew.
    """
    if not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
    try:
        if messages.discard_pending_message(opening.message_id) or not _message_exists(opening.message_id):
            raise ServiceUnavailable
        return build_taken_outcome(opening, ignored)
    except DATABASE_OUTAGE_ERRORS as problem:
        log.warning("a message may have been accepted: the database went away meanwhile")
        raise OutcomeUnknown from problem


def build_taken_outcome(opening: turns.NewTurn, ignored: list[str]) -> SubmissionStarted:
    """The answer for a message that a turn took from the rows while its request was slow."""
    turn_id: UUID | None = Message.objects.values_list("turn_id", flat=True).get(pk=opening.message_id)
    return SubmissionStarted(
        message_id=opening.message_id,
        turn_id=opening.turn_id if turn_id is None else turn_id,
        run_id=opening.run_id,
        cursor=_last_cursor_or_none(opening.session_id),
        state="started" if turn_id in (None, opening.turn_id) or opening.run_id else "delivered",
        ignored_attachments=ignored,
    )


def _message_exists(message_id: UUID) -> bool:
    return Message.objects.filter(pk=message_id).exists()


def _last_cursor_or_none(session_id: UUID) -> str:
    try:
        return event_log.get_last_cursor(str(session_id))
    except REDIS_OUTAGE_ERRORS:
        return event_log.EMPTY_LOG_CURSOR
