"""Replay the first outcome of a submission when its run_id is sent again."""

from __future__ import annotations

import time
from uuid import uuid4

from config.core.db import flush_wal
from config.core.errors import Conflict, Forbidden, NotFound, ServiceUnavailable
from copilot.chat import selectors
from copilot.chat.admission_outcomes import SubmissionQueued, SubmissionStarted
from copilot.chat.commands import SendMessage
from copilot.models import Message, Session, Turn
from copilot.realtime import event_log, lease

FIRST_OUTCOME_TIMEOUT_SECONDS = 2.0  # the first request with this run_id decides within milliseconds


def replay_first_outcome(command: SendMessage) -> SubmissionStarted | SubmissionQueued | None:
    """Return the first outcome of this run_id; raise when the session or the account is the reason instead.

    Return None when the first request was refused in the meantime, so that this one may try.
    """
    session = Session.objects.visible_to(command.user_id).filter(pk=command.session_id)
    if not session.exists():
        raise NotFound
    if not session.filter(owner__is_active=True).exists():
        raise Forbidden("This account is not active.", code="account_inactive")
    deadline = time.monotonic() + FIRST_OUTCOME_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        first = Message.objects.filter(session=command.session_id, run_id=command.run_id).first()
        if first is None:
            return None
        if first.content != command.text:
            raise Conflict("This run_id was used with another text.", code="idempotency_conflict")
        if (outcome := build_outcome_of_message(first)) is not None:
            return outcome
        time.sleep(0.01)
    raise ServiceUnavailable


def build_outcome_of_message(message: Message) -> SubmissionStarted | SubmissionQueued | None:
    cursor = event_log.get_last_cursor(str(message.session_id))
    if message.dropped_at is not None:
        turn = Turn.objects.filter(session=message.session_id, run_ids__contains=[message.run_id]).first()
        return SubmissionStarted(
            message_id=message.pk,
            turn_id=turn.pk if turn is not None else uuid4(),
            run_id=message.run_id,
            cursor=cursor,
        )
    if message.turn_id is not None:
        return SubmissionStarted(
            message_id=message.pk,
            turn_id=message.turn_id,
            run_id=message.run_id,
            cursor=cursor,
            state="started" if message.run_id else "delivered",
        )
    queue_items = [
        item for item in selectors.get_queue_items(message.session_id) if item.id == str(message.pk)
    ]
    turn_ahead = _turn_ahead_of(message) if queue_items else None
    if turn_ahead is None:
        return None
    flush_wal()
    return SubmissionQueued(
        message_id=message.pk,
        turn_id=turn_ahead.pk,
        run_id=message.run_id,
        position=queue_items[0].position,
        cursor=cursor,
    )


def _turn_ahead_of(message: Message) -> Turn | None:
    """Return the turn a queued message waits behind: the unfinished one, or the last under a limit."""
    turns = Turn.objects.filter(session=message.session_id).order_by("-created_at")
    unfinished = turns.filter(status__in=Turn.UNFINISHED).first()
    if unfinished is not None:
        return unfinished
    queued = {member.message_id for member in lease.list_members(str(message.session_id))}
    return turns.filter(fence__gt=0).first() if str(message.pk) in queued else None
