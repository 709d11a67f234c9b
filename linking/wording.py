"""What our bots say in their own words: results of commands, notices, the labels of their buttons. Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, assert_never

from linking.inbound import Decided
from linking.inbound.commands import (
    Halted,
    Help,
    LinkOffered,
    Renewed,
    Result,
    SettingsAt,
    Status,
    Unlinked,
)
from linking.names import clean_name

CONNECT = "Connect"
PRIVATE = ("help", "link", "status", "settings")  # commands whose answer is for who gave them
SERVER_UNLINKED = (
    "This server is not connected to an account yet. Whoever administers it can connect it with `/link`."
)
ADMINS_ONLY = "Only who administers this server can connect it. Please ask them to send `/link`."
NOT_IN_PUBLIC = "I could not write to you privately, and a link is for your eyes alone. Open a chat with me, then ask again here."
BUTTON_GONE = "This button is no longer in use."
NOTED = "Noted."
IN_A_WORD = {
    "unlinked": "This is not connected to an account yet. Send `/link` to connect it.",
    "ignored": "That is no command of mine. Send `/help` to see what I understand.",
}
CONNECTED = "Connected. You can talk to me here now."
HINT = "In groups I see only messages that mention me, answer me or begin with a command."

OPEN_CHAT = "Open the chat"


def waits(tools: Sequence[str], title: str) -> str:
    """What waits for a person, and where; what a call would do is shown there."""
    named = ", ".join(f"`{tool}`" for tool in dict.fromkeys(tools))
    return f"**Waiting for your decision:** {named} in “{clean_name(title) or 'a chat without a name'}”."


def of(result: Result) -> str:
    match result:
        case Help():
            lines = [f"`/{name}` – {does}" for name, does in result.commands.items()]
            return "\n".join(["**I understand**", "", *(f"- {line}" for line in lines), "", HINT])
        case LinkOffered():
            return "Connect this chat with your account. The link is for you alone and works for 30 minutes."
        case Unlinked():
            return "Disconnected. What was said stays with the account, on the web."
        case Renewed():
            return "A new conversation begins here."
        case Halted():
            return "Stopped." if result.stopped else "There is nothing to stop."
        case Status():
            return _status(result)
        case SettingsAt():
            return f"Your settings: {result.url}"
        case unreachable:
            assert_never(unreachable)


def _status(status: Status) -> str:
    if not status.linked:
        return "This chat is not connected to an account. Send `/link` to connect it."
    state = {"idle": "I am ready.", "running": "I am working.", "waiting": "I am waiting for a decision."}
    lines = [state[status.state]]
    if status.waiting:
        lines.append(f"{status.waiting} messages wait in line.")
    if status.web_url:
        lines.append(f"On the web: {status.web_url}")
    return "\n".join(lines)


def queued(position: int | None) -> str:
    return f"I am still working on the last one; yours is number {position or 1} in line."


def left_out(count: int) -> str:
    what = "One file" if count == 1 else f"{count} files"
    return f"{what} could not be taken: each may have 20 MB, and the account must have room for it."


def pressed(result: Decided | Literal["answered"]) -> str:
    if result == "answered":
        return "Answered."
    return "Rejected." if result.state == "rejected" else "Approved."
