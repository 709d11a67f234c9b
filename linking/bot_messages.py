"""Texts of the bundled bots, in Markdown: command results, notices and button labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, assert_never

from linking.display_names import clean_name
from linking.inbound.commands import (
    CommandResult,
    HelpResult,
    LinkResult,
    NewConversationResult,
    SettingsResult,
    StatusResult,
    StopResult,
    UnlinkResult,
)
from linking.inbound.controls import Decided

CONNECT_LABEL = "Connect"
PRIVATE_COMMANDS = ("help", "link", "status", "settings")  # commands whose answer is for who gave them
SERVER_NOT_LINKED = (
    "This server is not connected to an account yet. Whoever administers it can connect it with `/link`."
)
ADMINS_ONLY = "Only who administers this server can connect it. Please ask them to send `/link`."
LINK_NOT_DELIVERED = "I could not write to you privately, and a link is for your eyes alone. Open a chat with me, then ask again here."
BUTTON_GONE = "This button is no longer in use."
NOTED = "Noted."
OUTCOME_REPLIES = {
    "unlinked": "This is not connected to an account yet. Send `/link` to connect it.",
    "ignored": "That is no command of mine. Send `/help` to see what I understand.",
}
CONNECTED = "Connected. You can talk to me here now."
GROUP_HINT = "In groups I see only messages that mention me, answer me or begin with a command."

OPEN_CHAT_LABEL = "Open the chat"


def format_waiting(tools: Sequence[str], title: str) -> str:
    """Format a notice that calls wait for a decision, naming the tools and the chat but not the arguments."""
    named = ", ".join(f"`{tool}`" for tool in dict.fromkeys(tools))
    return f"**Waiting for your decision:** {named} in “{clean_name(title) or 'a chat without a name'}”."


def format_result(result: CommandResult) -> str:
    match result:
        case HelpResult():
            lines = [f"`/{name}` – {does}" for name, does in result.commands.items()]
            return "\n".join(["**I understand**", "", *(f"- {line}" for line in lines), "", GROUP_HINT])
        case LinkResult():
            return "Connect this chat with your account. The link is for you alone and works for 30 minutes."
        case UnlinkResult():
            return "Disconnected. What was said stays with the account, on the web."
        case NewConversationResult():
            return "A new conversation begins here."
        case StopResult():
            return "Stopped." if result.stopped else "There is nothing to stop."
        case StatusResult():
            return _format_status(result)
        case SettingsResult():
            return f"Your settings: {result.url}"
        case unreachable:
            assert_never(unreachable)


def _format_status(status: StatusResult) -> str:
    if not status.linked:
        return "This chat is not connected to an account. Send `/link` to connect it."
    state = {"idle": "I am ready.", "running": "I am working.", "waiting": "I am waiting for a decision."}
    lines = [state[status.state]]
    if status.waiting:
        lines.append(f"{status.waiting} messages wait in line.")
    if status.web_url:
        lines.append(f"On the web: {status.web_url}")
    return "\n".join(lines)


def format_queued(position: int | None) -> str:
    return f"I am still working on the last one; yours is number {position or 1} in line."


def format_skipped_files(count: int) -> str:
    what = "One file" if count == 1 else f"{count} files"
    return f"{what} could not be taken: each may have 20 MB, and the account must have room for it."


def format_press(result: Decided | Literal["answered"]) -> str:
    if result == "answered":
        return "Answered."
    return "Rejected." if result.state == "rejected" else "Approved."
