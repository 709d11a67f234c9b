"""Commands typed as a message, such as `/rename Boats`: read at the door, the same at every door (A30.2)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from config.core.errors import InvalidRequest
from config.core.text import gettext_noop as _
from copilot.chat import sessions
from copilot.chat.admission import submit_message
from copilot.chat.branches import undo_last_turn
from copilot.chat.commands import SendMessage
from copilot.chat.compaction_requests import request_compaction
from copilot.chat.goals import change_goal_state, get_goal_status, set_goal_and_start
from copilot.chat.side_questions import ask_side_question
from copilot.chat.stop import stop_session


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """A command was carried out; nothing was said to the agent, unless a new chat began with it."""

    command: str
    message: str
    session_id: UUID  # where to look now
    turn_id: UUID | None = None
    text: str = ""  # what an undo took out, to be said differently
    side_id: str | None = None  # whose log, from `cursor` on, tells the answer to a question aside
    cursor: str = ""
    state: Literal["obeyed"] = "obeyed"


def _run_new(message: SendMessage, typed: ParsedSlashCommand) -> CommandResult:
    turn_id = None
    with sessions.create_session_for_first_message(message.user_id) as session:
        if typed.argument:
            turn_id = submit_message(replace(message, session_id=session.pk, text=typed.argument)).turn_id
    return CommandResult(command="new", message="A new chat began.", session_id=session.pk, turn_id=turn_id)


def _run_undo(message: SendMessage, typed: ParsedSlashCommand) -> CommandResult:
    undone = undo_last_turn(message.user_id, message.session_id)
    return CommandResult(
        command="undo",
        message=undone.message,
        session_id=message.session_id,
        turn_id=undone.turn_id,
        text=undone.text,
    )


def _run_btw(message: SendMessage, typed: ParsedSlashCommand) -> CommandResult:
    aside = ask_side_question(message.user_id, message.session_id, typed.argument)
    return CommandResult(
        command="btw",
        message="Asked aside.",
        session_id=message.session_id,
        side_id=aside.side_id,
        cursor=aside.cursor,
    )


def _run_goal(message: SendMessage, typed: ParsedSlashCommand) -> CommandResult:
    match typed.argument:
        case "":
            goal = get_goal_status(message.user_id, message.session_id)
        case "pause" | "resume" | "clear":
            goal = change_goal_state(message, typed.argument)
        case _:
            goal = set_goal_and_start(replace(message, text=typed.argument))
    words = f"The goal is {goal.state}: {goal.goal}" if goal.state else "There is no goal."
    return CommandResult(command="goal", message=words, session_id=message.session_id, turn_id=goal.turn_id)


def _run_stop(message: SendMessage, typed: ParsedSlashCommand) -> CommandResult:
    stopped = stop_session(message.user_id, message.session_id)
    words = "Stopping." if stopped.state == "stopping" else "Nothing is running."
    return CommandResult(
        command="stop", message=words, session_id=message.session_id, turn_id=stopped.turn_id
    )


def _run_rename(message: SendMessage, typed: ParsedSlashCommand) -> CommandResult:
    if not typed.argument:
        raise InvalidRequest("Say the new title: /rename My title")
    session = sessions.update_session(message.user_id, message.session_id, title=typed.argument)
    return CommandResult(command="rename", message=f"Renamed to {session.title}.", session_id=session.pk)


def _run_compact(message: SendMessage, typed: ParsedSlashCommand) -> CommandResult:
    begun = request_compaction(
        message.user_id, message.session_id, focus=typed.argument, origin=message.origin
    )
    return CommandResult(
        command="compact", message=begun.message, session_id=message.session_id, turn_id=begun.turn_id
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
    """One of the commands there are, as menus show it."""

    name: str
    does: str
    takes: str = ""  # what goes behind it; empty: nothing may


SLASH_COMMANDS = (
    SlashCommand(name="new", takes="[message]", does=_("Start a new chat")),
    SlashCommand(name="undo", does=_("Take back the last turn")),
    SlashCommand(name="btw", takes="question", does=_("Ask something aside")),
    SlashCommand(name="goal", takes="[text, pause, resume or clear]", does=_("Work towards a goal")),
    SlashCommand(name="compact", takes="[focus]", does=_("Summarise this chat to make room")),
    SlashCommand(name="stop", does=_("Stop the running turn")),
    SlashCommand(name="rename", takes="title", does=_("Rename this chat")),
)
_COMMANDS_BY_NAME = {one.name: one for one in SLASH_COMMANDS}


@dataclass(frozen=True)
class ParsedSlashCommand:
    name: str
    argument: str

    @property
    def is_known(self) -> bool:
        """A name that takes nothing, with words behind it, is a sentence: nothing is undone by accident."""
        known = _COMMANDS_BY_NAME.get(self.name)
        return known is not None and bool(known.takes or not self.argument)

    def explain_not_run(self) -> str:
        """What to tell somebody whose command was sent as text."""
        if self.name in _COMMANDS_BY_NAME:
            return f"/{self.name} takes no words, so this was sent as a message."
        names = ", ".join(f"/{one.name}" for one in SLASH_COMMANDS)
        return f"There is no command /{self.name}, so this was sent as a message. There are {names}."


def parse_slash_command(text: str) -> ParsedSlashCommand | None:
    """The command a text is written as, known or not; None for plain words, paths and code."""
    found = _SLASH_COMMAND_PATTERN.fullmatch(text.strip())
    return ParsedSlashCommand(found[1], (found[2] or "").strip()) if found else None
