"""Accept what people, tools and schedules send to a session, and run slash commands among it."""

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
    questions.record_answer(user_id, question_id, text=text, choice=choice)


def submit_internal_message(message: InternalMessage) -> SubmitReceipt:
    """Submit a message that the server wrote. Its text is cleaned too, because models wrote parts of it."""
    outcome = submit_message(
        SendMessage(
            session_id=message.session_id,
            user_id=message.user_id,
            text=clean_text(message.text),
            origin=message.origin,
            permissions=message.permissions,
            tier=message.tier,
            mode=message.mode,
            run_id=message.run_id,
            author=message.author,
            parent=message.parent,
            arrival=message.arrival,
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


def submit_input(message: SendMessage) -> SubmissionStarted | SubmissionQueued | CommandResult:
    """Run a slash command, or submit a message.

    A message with a run_id or with files is never a command: it is promised a turn of its own.
    """
    slash_command = slash_commands.parse_slash_command(message.text)
    if slash_command is None or message.run_id is not None or message.attachments:
        return submit_message(message)
    if not slash_command.is_known:
        return replace(submit_message(message), hint=slash_command.explain_not_run())
    selectors.get_session(message.user_id, message.session_id)
    return COMMAND_HANDLERS[slash_command.name](message, slash_command)
