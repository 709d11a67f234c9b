"""Outcomes of a submission, and the recovery of the right one after an outage in the middle of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

import structlog
from django.db import InterfaceError, OperationalError, connection

from config.core.errors import OutcomeUnknown, ServiceUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.chat import messages, turns
from copilot.models import Message
from copilot.realtime import event_log, lease


@dataclass(frozen=True, kw_only=True)
class SubmissionStarted:
    """A message with its place in the session: it began a turn, or the running turn took it."""

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


# --- Outages -----------------------------------------------------------------------------------------

log = structlog.get_logger(__name__)

DATABASE_OUTAGE_ERRORS = (OperationalError, InterfaceError)
OUTAGE_ERRORS = (ServiceUnavailable, *DATABASE_OUTAGE_ERRORS, *REDIS_OUTAGE_ERRORS)


def resolve_after_outage(new_turn: turns.NewTurn, ignored: list[str]) -> SubmissionStarted:
    """Find out whether a message was accepted although Postgres or Redis failed on the way.

    Raise ServiceUnavailable once nothing of it is left; a message that a running turn has taken is
    accepted. The rows are read again, because a commit may have succeeded although its answer was lost.
    """
    if not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
    try:
        if messages.discard_pending_message(new_turn.message_id) or not _message_exists(new_turn.message_id):
            raise ServiceUnavailable
        return build_taken_outcome(new_turn, ignored)
    except DATABASE_OUTAGE_ERRORS as problem:
        log.warning(
            "submission_outcome_unknown", session_id=new_turn.session_id, message_id=new_turn.message_id
        )
        raise OutcomeUnknown from problem


def build_taken_outcome(new_turn: turns.NewTurn, ignored: list[str]) -> SubmissionStarted:
    """Build the outcome for a message that a turn took from the rows while its request was slow."""
    turn_id: UUID | None = Message.objects.values_list("turn_id", flat=True).get(pk=new_turn.message_id)
    return SubmissionStarted(
        message_id=new_turn.message_id,
        turn_id=new_turn.turn_id if turn_id is None else turn_id,
        run_id=new_turn.run_id,
        cursor=_last_cursor_or_none(new_turn.session_id),
        state="started" if turn_id in (None, new_turn.turn_id) or new_turn.run_id else "delivered",
        ignored_attachments=ignored,
    )


def _message_exists(message_id: UUID) -> bool:
    return Message.objects.filter(pk=message_id).exists()


def _last_cursor_or_none(session_id: UUID) -> str:
    try:
        return event_log.get_last_cursor(str(session_id))
    except REDIS_OUTAGE_ERRORS:
        return event_log.EMPTY_LOG_CURSOR
