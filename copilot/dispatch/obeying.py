"""What a person typed: a message for the agent, or a command for us (A30.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from copilot import queries, sessions, slashes
from copilot.commands import SendMessage
from copilot.dispatch.admission import submit
from copilot.dispatch.answers import Queued, Started
from copilot.dispatch.asides import ask_aside
from copilot.dispatch.compacting import compact
from copilot.dispatch.pursuing import change_goal, goal_of, set_goal
from copilot.dispatch.stopping import stop
from copilot.dispatch.undoing import undo
from copilot.errors import InvalidRequest
from copilot.slashes import Typed


@dataclass(frozen=True, kw_only=True)
class Obeyed:
    """A command was carried out; nothing was said to the agent, unless a new chat began with it."""

    command: str
    message: str
    session_id: UUID  # where to look now
    turn_id: UUID | None = None
    text: str = ""  # what an undo took out, to be said differently
    side_id: str | None = None  # whose log, from `cursor` on, tells the answer to a question aside
    cursor: str = ""
    state: Literal["obeyed"] = "obeyed"


def hear(message: SendMessage) -> Started | Queued | Obeyed:
    """A message with a run_id or files is never a command: it is promised a turn of its own."""
    typed = slashes.typed(message.text)
    if typed is None or message.run_id is not None or message.attachments:
        return submit(message)
    if not typed.is_known:
        return replace(submit(message), hint=typed.hint())
    queries.session_of(message.user_id, message.session_id)
    return ACTS[typed.name](message, typed)


def _new(message: SendMessage, typed: Typed) -> Obeyed:
    turn_id = None
    with sessions.begun(message.user_id) as session:
        if typed.rest:
            turn_id = submit(replace(message, session_id=session.pk, text=typed.rest)).turn_id
    return Obeyed(command="new", message="A new chat began.", session_id=session.pk, turn_id=turn_id)


def _undo(message: SendMessage, typed: Typed) -> Obeyed:
    undone = undo(message.user_id, message.session_id)
    return Obeyed(
        command="undo",
        message=undone.message,
        session_id=message.session_id,
        turn_id=undone.turn_id,
        text=undone.text,
    )


def _btw(message: SendMessage, typed: Typed) -> Obeyed:
    aside = ask_aside(message.user_id, message.session_id, typed.rest)
    return Obeyed(
        command="btw",
        message="Asked aside.",
        session_id=message.session_id,
        side_id=aside.side_id,
        cursor=aside.cursor,
    )


def _goal(message: SendMessage, typed: Typed) -> Obeyed:
    match typed.rest:
        case "":
            goal = goal_of(message.user_id, message.session_id)
        case "pause" | "resume" | "clear":
            goal = change_goal(message, typed.rest)
        case _:
            goal = set_goal(replace(message, text=typed.rest))
    words = f"The goal is {goal.state}: {goal.goal}" if goal.state else "There is no goal."
    return Obeyed(command="goal", message=words, session_id=message.session_id, turn_id=goal.turn_id)


def _stop(message: SendMessage, typed: Typed) -> Obeyed:
    stopped = stop(message.user_id, message.session_id)
    words = "Stopping." if stopped.state == "stopping" else "Nothing is running."
    return Obeyed(command="stop", message=words, session_id=message.session_id, turn_id=stopped.turn_id)


def _rename(message: SendMessage, typed: Typed) -> Obeyed:
    if not typed.rest:
        raise InvalidRequest("Say the new title: /rename My title")
    session = sessions.update(message.user_id, message.session_id, title=typed.rest)
    return Obeyed(command="rename", message=f"Renamed to {session.title}.", session_id=session.pk)


def _compact(message: SendMessage, typed: Typed) -> Obeyed:
    begun = compact(message.user_id, message.session_id, focus=typed.rest, origin=message.origin)
    return Obeyed(
        command="compact", message=begun.message, session_id=message.session_id, turn_id=begun.turn_id
    )


ACTS: dict[str, Callable[[SendMessage, Typed], Obeyed]] = {
    "new": _new,
    "undo": _undo,
    "compact": _compact,
    "btw": _btw,
    "goal": _goal,
    "stop": _stop,
    "rename": _rename,
}
