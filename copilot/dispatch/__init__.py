"""A message arrives: start a turn, queue behind one, or refuse. A stop, a change of the queue or an answer arrives: act."""

from __future__ import annotations

from uuid import UUID

from copilot import queries, questions
from copilot.commands import SendMessage, clean_text
from copilot.dispatch.admission import submit, title_from
from copilot.dispatch.answers import Queued, Started, Stopped
from copilot.dispatch.asides import Aside, AsideSeen, aside_of, ask_aside, stop_aside
from copilot.dispatch.branching import Switched, resend, switch_branch
from copilot.dispatch.compacting import Compacting, compact, compact_after
from copilot.dispatch.continuing import expire
from copilot.dispatch.deciding import Decided, decide
from copilot.dispatch.following import after_turn, follow, limit_lifted, restore, start_stranded
from copilot.dispatch.obeying import Obeyed, hear
from copilot.dispatch.pursuing import Goal, change_goal, goal_of, set_goal
from copilot.dispatch.queueing import edit_queued, move_queued, remove_queued, send_now
from copilot.dispatch.stopping import drop_queue, halt, remove_session, stop, stop_execution
from copilot.dispatch.telling import (
    announce_cancelled,
    closed,
    publish,
    publish_page,
)
from copilot.dispatch.undoing import Undone, undo
from copilot.ports import Heard, Said

__all__ = [
    "Aside",
    "AsideSeen",
    "Compacting",
    "Decided",
    "Goal",
    "Obeyed",
    "Queued",
    "Started",
    "Stopped",
    "Switched",
    "Undone",
    "after_turn",
    "announce_cancelled",
    "answer_question",
    "aside_of",
    "ask_aside",
    "change_goal",
    "closed",
    "compact",
    "compact_after",
    "decide",
    "drop_queue",
    "edit_queued",
    "expire",
    "follow",
    "goal_of",
    "halt",
    "hear",
    "limit_lifted",
    "move_queued",
    "publish",
    "publish_page",
    "remove_queued",
    "remove_session",
    "resend",
    "restore",
    "say",
    "send_now",
    "set_goal",
    "start_stranded",
    "stop",
    "stop_aside",
    "stop_execution",
    "stop_turn",
    "submit",
    "switch_branch",
    "title_from",
    "undo",
    "unsay",
]


def answer_question(user_id: int, question_id: UUID, *, text: str | None, choice: str | None) -> None:
    """A person answers what the agent asked; the waiting turn reads it from the row (A12)."""
    questions.answer(user_id, question_id, text=text, choice=choice)


def say(said: Said) -> Heard:
    """The server's own messages take the same road as everybody's, and are no cleaner: models wrote parts of them (A15.6)."""
    outcome = submit(
        SendMessage(
            session_id=said.session_id,
            user_id=said.user_id,
            text=clean_text(said.text),
            origin=said.origin,
            permissions=said.permissions,
            tier=said.tier,
            mode=said.mode,
            run_id=said.run_id,
            author=said.author,
            parent=said.parent,
            arrival=said.arrival,
        )
    )
    return Heard(message_id=outcome.message_id, turn_id=outcome.turn_id, queued=isinstance(outcome, Queued))


def unsay(user_id: int, session_id: UUID, message_id: UUID) -> bool:
    queries.session_of(user_id, session_id)
    return bool(drop_queue(session_id, None, message_id, by="parent"))


def stop_turn(user_id: int, session_id: UUID, turn_id: UUID) -> bool:
    return stop(user_id, session_id, turn_id=turn_id, by="parent").state == "stopping"
