"""Texts of the bundled bots, in Markdown: command results, notices and button labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, assert_never

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
from linking.models.fields import clean_name

CONNECT_LABEL = "Connect"
PRIVATE_COMMANDS = ("help", "link", "status", "settings")  # commands that are answered in private
SERVER_NOT_LINKED = "This server isn't connected to an account yet. An admin can connect it with `/link`."
ADMINS_ONLY = "Only an admin of this server can connect it. Ask one to send `/link`."
LINK_NOT_DELIVERED = "I couldn't send you a direct message, and the link is only for you. Open a chat with me, then try again here."
BUTTON_GONE = "This button no longer works."
NOTED = "Noted."
OUTCOME_REPLIES = {
    "unlinked": "This isn't connected to an account yet. Send `/link` to connect it.",
    "ignored": "I don't know that command. Send `/help` to see what I can do.",
}
CONNECTED = "Connected. You can chat with me here now."
GROUP_HINT = "In groups I only see messages that mention me, reply to me or start with a command."

OPEN_CHAT_LABEL = "Open the chat"


def format_waiting(tools: Sequence[str], title: str) -> str:
    """Format a notice that calls wait for a decision, naming the tools and the chat but not the arguments."""
    named = ", ".join(dict.fromkeys(tools))
    return f"**Approval needed:** {named} in “{clean_name(title) or 'an untitled chat'}”."


def format_result(result: CommandResult) -> str:
    match result:
        case HelpResult():
            lines = [f"`/{name}` – {does}" for name, does in result.commands.items()]
            return "\n".join(["**Commands**", "", *(f"- {line}" for line in lines), "", GROUP_HINT])
        case LinkResult():
            return "Connect this chat to your account. The link is only for you and works for 30 minutes."
        case UnlinkResult():
            return "Disconnected. Your chats stay in your account on the web."
        case NewConversationResult():
            return "Started a new chat."
        case StopResult():
            return "Stopped." if result.stopped else "Nothing to stop."
        case StatusResult():
            return _format_status(result)
        case SettingsResult():
            return f"Your settings: {result.url}"
        case unreachable:
            assert_never(unreachable)


def _format_status(status: StatusResult) -> str:
    if not status.linked:
        return "This chat isn't connected to an account. Send `/link` to connect it."
    state = {"idle": "I'm ready.", "running": "I'm working.", "waiting": "I'm waiting for an approval."}
    lines = [state[status.state]]
    if status.waiting:
        lines.append(
            "1 message is queued." if status.waiting == 1 else f"{status.waiting} messages are queued."
        )
    if status.web_url:
        lines.append(f"On the web: {status.web_url}")
    return "\n".join(lines)


def format_queued(position: int | None) -> str:
    return f"I'm still working on the last message. Yours is number {position or 1} in the queue."


def format_skipped_files(count: int) -> str:
    what = "One file" if count == 1 else f"{count} files"
    return f"{what} couldn't be added. Files can be up to 20 MB, and the account needs enough space."


def format_press(result: Decided | Literal["answered"]) -> str:
    if result == "answered":
        return "Answered."
    return "Rejected." if result.state == "rejected" else "Approved."
