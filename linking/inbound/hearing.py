"""What somebody writes to one of our own bots: the answer to an open question, or a message like any other (A12.2)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from copilot import queries as copilot
from copilot.errors import Conflict, Forbidden, InvalidRequest
from linking import conversations
from linking.inbound import controls
from linking.inbound.messages import Accepted, IncomingMessage, start


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The words went to the question that the agent had asked."""

    question_id: str
    session_id: str


def hear(message: IncomingMessage) -> Accepted | Answered:
    """Raises `Refused` as `start` does; a late answer, and one of somebody else, is an ordinary message."""
    return _answered(message) or start(message)


def _answered(message: IncomingMessage) -> Answered | None:
    if not message.text.strip() or message.attachments:
        return None
    place = conversations.session_asking(message.where)
    if place is None:
        return None
    asked = copilot.open_questions(place.session_id)
    if not asked:
        return None
    choice = message.text if message.text in asked[0].choices else None
    try:
        controls.answer(
            message.where.bot,
            UUID(asked[0].id),
            user_id=message.user_id,
            text=None if choice else message.text,
            choice=choice,
        )
    except (Conflict, Forbidden, InvalidRequest):
        return None
    return Answered(question_id=asked[0].id, session_id=str(place.session_id))
