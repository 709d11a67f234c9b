"""A message arrives: start a turn, queue behind one, or refuse. A stop, a change of the queue or an answer arrives: act."""

from __future__ import annotations

from uuid import UUID

from copilot import questions
from copilot.dispatch.admission import submit, title_from
from copilot.dispatch.answers import Queued, Started, Stopped
from copilot.dispatch.following import after_turn, restore, start_stranded
from copilot.dispatch.queueing import edit_queued, move_queued, remove_queued, send_now
from copilot.dispatch.stopping import stop
from copilot.dispatch.telling import (
    announce_cancelled,
    became_idle,
    closed,
    notice_posted,
    publish,
    publish_page,
)

__all__ = [
    "Queued",
    "Started",
    "Stopped",
    "after_turn",
    "announce_cancelled",
    "answer_question",
    "became_idle",
    "closed",
    "edit_queued",
    "move_queued",
    "notice_posted",
    "publish",
    "publish_page",
    "remove_queued",
    "restore",
    "send_now",
    "start_stranded",
    "stop",
    "submit",
    "title_from",
]


def answer_question(user_id: int, question_id: UUID, *, text: str | None, choice: str | None) -> None:
    """A person answers what the agent asked; the waiting turn reads it from the row (A12)."""
    questions.answer(user_id, question_id, text=text, choice=choice)
