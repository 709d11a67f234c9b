"""Take what people send: run slash commands such as `/rename Boats`, and submit everything else as a message."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from config.core.errors import InvalidRequest
from config.core.text import gettext_noop as _
from copilot.chat import selectors, sessions
from copilot.chat.admission import submit_message
from copilot.chat.admission_outcomes import SubmissionQueued, SubmissionStarted
from copilot.chat.branches import undo_last_turn
from copilot.chat.commands import SendMessage
from copilot.chat.compaction_requests import request_compaction
from copilot.chat.goals import change_goal_state, get_goal_status, set_goal_and_start
from copilot.chat.side_questions import ask_side_question
from copilot.chat.stop import stop_session


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    command: str
    message: str
    session_id: UUID  # the session to show now
    turn_id: UUID | None = None
    text: str = ""  # what an undo removed, for the user to edit and send again
    side_id: str | None = None  # the side question whose event log has the answer, from `cursor` on
    cursor: str = ""
    state: Literal["obeyed"] = "obeyed"


def submit_input(message: SendMessage) -> SubmissionStarted | SubmissionQueued | CommandResult:
    """Run a slash command, or submit a message.

    A message with a run_id or with files is never a command: it is promised a turn of its own.
    """
    slash_command = parse_slash_command(message.text)
    if slash_command is None or message.run_id is not None or message.attachments:
        return submit_message(message)
    if not slash_command.is_known:
        return replace(submit_message(message), hint=slash_command.explain_not_run())
    selectors.get_session(message.user_id, message.session_id)
    return COMMAND_HANDLERS[slash_command.name](message, slash_command)


def _run_new(message: SendMessage, parsed: ParsedSlashCommand) -> CommandResult:
    turn_id = None
    with sessions.create_session_for_first_message(message.user_id) as session:
        if parsed.argument:
            turn_id = submit_message(replace(message, session_id=session.pk, text=parsed.argument)).turn_id
    return CommandResult(command="new", message="Started a new chat.", session_id=session.pk, turn_id=turn_id)


def _run_undo(message: SendMessage, parsed: ParsedSlashCommand) -> CommandResult:
    undone = undo_last_turn(message.user_id, message.session_id)
    return CommandResult(
        command="undo",
        message=undone.message,
        session_id=message.session_id,
        turn_id=undone.turn_id,
        text=undone.text,
    )


def _run_btw(message: SendMessage, parsed: ParsedSlashCommand) -> CommandResult:
    side_question = ask_side_question(message.user_id, message.session_id, parsed.argument)
    return CommandResult(
        command="btw",
        message="Side question asked.",
        session_id=message.session_id,
        side_id=side_question.side_id,
        cursor=side_question.cursor,
    )


def _run_goal(message: SendMessage, parsed: ParsedSlashCommand) -> CommandResult:
    match parsed.argument:
        case "":
            goal = get_goal_status(message.user_id, message.session_id)
        case "pause" | "resume" | "clear":
            goal = change_goal_state(message, parsed.argument)
        case _:
            goal = set_goal_and_start(replace(message, text=parsed.argument))
    words = f"The goal is {goal.state}: {goal.goal}" if goal.state else "There is no goal."
    return CommandResult(command="goal", message=words, session_id=message.session_id, turn_id=goal.turn_id)


def _run_stop(message: SendMessage, parsed: ParsedSlashCommand) -> CommandResult:
    stopped = stop_session(message.user_id, message.session_id)
    text = "Stopping." if stopped.state == "stopping" else "Nothing is running."
    return CommandResult(command="stop", message=text, session_id=message.session_id, turn_id=stopped.turn_id)


def _run_rename(message: SendMessage, parsed: ParsedSlashCommand) -> CommandResult:
    if not parsed.argument:
        raise InvalidRequest("Add the new title, for example: /rename My title")
    session = sessions.update_session(message.user_id, message.session_id, title=parsed.argument)
    return CommandResult(command="rename", message=f"Renamed to {session.title}.", session_id=session.pk)


def _run_compact(message: SendMessage, parsed: ParsedSlashCommand) -> CommandResult:
    result = request_compaction(
        message.user_id, message.session_id, focus=parsed.argument, origin=message.origin
    )
    return CommandResult(
        command="compact", message=result.message, session_id=message.session_id, turn_id=result.turn_id
    )


COMMAND_HANDLERS: dict[str, Callable[[SendMessage, ParsedSlashCommand], CommandResult]] = {
    "new": _run_new,
    "undo": _run_undo,
    "compact": _run_compact,
    "btw": _run_btw,
    "goal": _run_goal,
    "stop": _run_stop,
    "rename": _run_rename,
}

_SLASH_COMMAND_PATTERN = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class SlashCommand:
    name: str
    does: str
    takes: str = ""  # what may follow it; empty if nothing may


SLASH_COMMANDS = (
    SlashCommand(name="new", takes="[message]", does=_("Start a new chat")),
    SlashCommand(name="undo", does=_("Undo the last exchange")),
    SlashCommand(name="btw", takes="question", does=_("Ask a side question")),
    SlashCommand(name="goal", takes="[text, pause, resume or clear]", does=_("Work towards a goal")),
    SlashCommand(name="compact", takes="[focus]", does=_("Summarise this chat to make room")),
    SlashCommand(name="stop", does=_("Stop the current answer")),
    SlashCommand(name="rename", takes="title", does=_("Rename this chat")),
)
_COMMANDS_BY_NAME = {command.name: command for command in SLASH_COMMANDS}


@dataclass(frozen=True)
class ParsedSlashCommand:
    name: str
    argument: str

    @property
    def is_known(self) -> bool:
        """Treat a command that takes no text as a sentence if text follows: nothing is undone by accident."""
        known = _COMMANDS_BY_NAME.get(self.name)
        return known is not None and bool(known.takes or not self.argument)

    def explain_not_run(self) -> str:
        if self.name in _COMMANDS_BY_NAME:
            return f"/{self.name} must stand alone, so this was sent as a message."
        names = ", ".join(f"/{command.name}" for command in SLASH_COMMANDS)
        return f"/{self.name} is not a command, so this was sent as a message. Commands are: {names}."


def parse_slash_command(text: str) -> ParsedSlashCommand | None:
    match = _SLASH_COMMAND_PATTERN.fullmatch(text.strip())
    return ParsedSlashCommand(match[1], (match[2] or "").strip()) if match else None
