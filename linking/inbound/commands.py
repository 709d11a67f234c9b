"""The commands that every chat knows, as values that an adapter puts into words (L15)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.urls import reverse

from config.core.errors import Forbidden
from copilot.chat import selectors as chat_selectors
from copilot.realtime.payloads import SessionState
from linking.conversations import services as conversations
from linking.conversations.services import ConversationPlace
from linking.errors import NotLinked
from linking.inbound import controls
from linking.links import services as links
from linking.links import tokens
from linking.links.tokens import TokenRequest

SETTINGS_PATH = "/settings/chats/"
COMMANDS: dict[str, str] = {
    "help": "Show what I understand.",
    "link": "Connect this chat with an account.",
    "unlink": "Disconnect this chat from its account.",
    "new": "Begin a new conversation here.",
    "stop": "Stop what I am doing.",
    "status": "Show how this chat stands.",
    "settings": "Open the settings on the web.",
}


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """Who gave a command where. `is_admin`: whether the platform says that they administer the server."""

    where: ConversationPlace
    user_id: str
    display_name: str = ""
    place_name: str = ""  # of the server; of a direct message the display name says it
    is_admin: bool = False


@dataclass(frozen=True, kw_only=True)
class HelpResult:
    commands: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class LinkResult:
    """For the eyes of who asked alone: whoever opens it may claim the chat (L4)."""

    link_url: str
    qr_url: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class UnlinkResult:
    pass


@dataclass(frozen=True, kw_only=True)
class NewConversationResult:
    conversation_id: UUID
    session_id: UUID


@dataclass(frozen=True, kw_only=True)
class StopResult:
    stopped: int  # turns and waiting messages; 0: nothing was going on


@dataclass(frozen=True, kw_only=True)
class StatusResult:
    linked: bool
    state: SessionState = "idle"
    waiting: int = 0
    web_url: str = ""  # for the payer alone


@dataclass(frozen=True, kw_only=True)
class SettingsResult:
    url: str


CommandResult = (
    HelpResult
    | LinkResult
    | UnlinkResult
    | NewConversationResult
    | StopResult
    | StatusResult
    | SettingsResult
)


def parse_command(text: str) -> str | None:
    """The command that a text begins with; unknown ones are none of ours."""
    word = text.strip().split(maxsplit=1)[0] if text.strip() else ""
    name = word.removeprefix("/").partition("@")[0].lower()
    return name if word.startswith("/") and name in COMMANDS else None


def run_command(name: str, asked: CommandRequest) -> CommandResult:
    """Raises `Refused`, as the doors would."""
    match name:
        case "link":
            return _create_link(asked)
        case "unlink":
            return _revoke_link(asked)
        case "new":
            opened = conversations.open_new_conversation(
                asked.where, conversations.find_payer(asked.where, asked.user_id)
            )
            return NewConversationResult(conversation_id=opened.conversation_id, session_id=opened.session_id)
        case "stop":
            return _stop_turns(asked)
        case "status":
            return _build_status(asked)
        case "settings":
            return SettingsResult(url=f"{settings.SITE_URL}{SETTINGS_PATH}")
        case _:
            return HelpResult(commands=COMMANDS)


def _create_link(asked: CommandRequest) -> LinkResult:
    where = asked.where
    server = where.scope == "server"
    request = TokenRequest(
        platform=where.platform,
        bot_account=where.bot_account,
        subject_id=where.server_id if server else asked.user_id,
        subject_name=asked.place_name if server else asked.display_name,
        requester_name=asked.display_name,
        notify_container=where.container_id,
    )
    if server:
        made = tokens.create_server_token(request, requester_is_admin=asked.is_admin)
    else:
        made = tokens.create_user_token(request)
    return LinkResult(link_url=made.link_url, qr_url=made.qr_url, expires_at=made.expires_at)


def _revoke_link(asked: CommandRequest) -> UnlinkResult:
    """By the linked user, or the server's owner; whoever else administers the server may throw the bot out."""
    payer = conversations.find_payer(asked.where, asked.user_id)
    if not payer.speaks:
        raise Forbidden("Only whoever connected this server can disconnect it.", code="not_the_payer")
    if payer.link is not None:
        links.revoke_server_link(payer.owner_id, payer.link.pk)
    elif payer.user_link is not None:
        links.revoke_user_link(payer.owner_id, payer.user_link.pk)
    return UnlinkResult()


def _stop_turns(asked: CommandRequest) -> StopResult:
    payer = conversations.find_payer(asked.where, asked.user_id)
    place = conversations.find_open_conversation(asked.where)
    if place is None:
        return StopResult(stopped=0)
    return StopResult(stopped=controls.stop_conversation(place.session_id, payer, asked.user_id))


def _build_status(asked: CommandRequest) -> StatusResult:
    try:
        payer = conversations.find_payer(asked.where, asked.user_id)
    except NotLinked:
        return StatusResult(linked=False)
    place = conversations.find_open_conversation(asked.where)
    if place is None:
        return StatusResult(linked=True)
    url = f"{settings.SITE_URL}{reverse('chat_session', args=[place.session_id])}" if payer.speaks else ""
    return StatusResult(
        linked=True,
        state=chat_selectors.get_session_state(place.session_id),
        waiting=len(chat_selectors.get_queue_items(place.session_id)),
        web_url=url,
    )
