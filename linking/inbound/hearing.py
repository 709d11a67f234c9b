"""What somebody writes to one of our own bots: the answer to an open question, or a message like any other (A12.2)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from uuid import UUID

import msgspec

from copilot import queries as copilot
from copilot.errors import Conflict, Forbidden, InvalidRequest
from linking import conversations
from linking.conversations import Known
from linking.inbound import controls
from linking.inbound.messages import (
    Accepted,
    IncomingMessage,
    accepted_before,
    checked,
    claimed,
    start_claimed,
)


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The words went to the question that the agent had asked."""

    question_id: str
    session_id: str


def hear(message: IncomingMessage) -> Accepted | Answered:
    """Once, however often it comes. Raises `Refused` as `start` does; a late answer, and one of somebody else, is an
    ordinary message."""
    message = checked(message)
    claim = claimed(message)
    if isinstance(claim, Known):
        return _heard_before(message, claim)
    asked = None if claim.abandoned else _asked(message)
    if asked is not None:
        # Before it is given: should this process die in between, who comes after it gives it, and starts nothing.
        conversations.keep(claim, asdict(asked.answered))
        if _give(message, asked):
            return asked.answered
        conversations.take_back(claim)
    return start_claimed(message, claim)


def _heard_before(message: IncomingMessage, known: Known) -> Accepted | Answered:
    if "question_id" not in known.answer:
        return accepted_before(known)
    answered = msgspec.convert(known.answer, Answered)
    asked = _asked(message)
    if asked is not None and asked.answered == answered:
        _give(message, asked)
    return answered


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """An open question, and the message as an answer to it."""

    answered: Answered
    choice: str | None


def _asked(message: IncomingMessage) -> _Asked | None:
    if not message.text.strip() or message.attachments:
        return None
    place = conversations.session_asking(message.where)
    questions = copilot.open_questions(place.session_id) if place is not None else []
    if place is None or not questions:
        return None
    choice = message.text if message.text in questions[0].choices else None
    answered = Answered(question_id=questions[0].id, session_id=str(place.session_id))
    return _Asked(answered=answered, choice=choice)


def _give(message: IncomingMessage, asked: _Asked) -> bool:
    """Whether it was taken as the answer."""
    try:
        controls.answer(
            message.where.bot,
            UUID(asked.answered.question_id),
            user_id=message.user_id,
            text=None if asked.choice else message.text,
            choice=asked.choice,
        )
    except (Conflict, Forbidden, InvalidRequest):
        return False
    return True
