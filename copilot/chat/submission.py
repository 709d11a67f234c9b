"""A message arrives: start a turn, queue behind one, or refuse. A stop, a change of the queue or an answer arrives: act."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from copilot.chat import questions, selectors, slash_commands
from copilot.chat.admission import submit_message
from copilot.chat.admission_outcomes import SubmissionQueued, SubmissionStarted
from copilot.chat.commands import InternalMessage, SendMessage, SubmitReceipt, clean_text
from copilot.chat.slash_commands import COMMAND_HANDLERS, CommandResult
from copilot.chat.stop import drop_queued_messages, stop_session


def answer_question(user_id: int, question_id: UUID, *, text: str | None, choice: str | None) -> None:
    """A person answers what the agent asked; the waiting turn reads it from the row (A12)."""
    questions.record_answer(user_id, question_id, text=text, choice=choice)


def submit_internal_message(said: InternalMessage) -> SubmitReceipt:
    """The server's own messages take the same road as everybody's, and are no cleaner: models wrote parts of them (A15.6)."""
    outcome = submit_message(
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
    return SubmitReceipt(
        message_id=outcome.message_id, turn_id=outcome.turn_id, queued=isinstance(outcome, SubmissionQueued)
    )


def withdraw_queued_message(user_id: int, session_id: UUID, message_id: UUID) -> bool:
    selectors.get_session(user_id, session_id)
    return bool(drop_queued_messages(session_id, None, message_id, by="parent"))


def stop_child_turn(user_id: int, session_id: UUID, turn_id: UUID) -> bool:
    return stop_session(user_id, session_id, turn_id=turn_id, by="parent").state == "stopping"


# MERGED dispatch.obeying: What a person typed: a message for the agent, or a command for us (A30.2).


def submit_input(message: SendMessage) -> SubmissionStarted | SubmissionQueued | CommandResult:
    """A message with a run_id or files is never a command: it is promised a turn of its own."""
    typed = slash_commands.parse_slash_command(message.text)
    if typed is None or message.run_id is not None or message.attachments:
        return submit_message(message)
    if not typed.is_known:
        return replace(submit_message(message), hint=typed.explain_not_run())
    selectors.get_session(message.user_id, message.session_id)
    return COMMAND_HANDLERS[typed.name](message, typed)
