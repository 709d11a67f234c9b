"""Run the commands that bots understand in every chat, such as /link and /stop."""

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
    "help": "Show all commands.",
    "link": "Connect this chat to your account.",
    "unlink": "Disconnect this chat from your account.",
    "new": "Start a new conversation here.",
    "stop": "Stop the current answer.",
    "status": "Show the status of this chat.",
    "settings": "Open the settings on the web.",
}


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    where: ConversationPlace
    user_id: str
    display_name: str = ""
    place_name: str = ""  # the server's name; empty in a direct message
    is_admin: bool = False  # of the server, according to the platform


@dataclass(frozen=True, kw_only=True)
class HelpResult:
    commands: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class LinkResult:
    """A private link. Send it only to the person who asked: everyone who opens it can claim the chat."""

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
    stopped: int  # number of turns and queued messages


@dataclass(frozen=True, kw_only=True)
class StatusResult:
    linked: bool
    state: SessionState = "idle"
    waiting: int = 0
    web_url: str = ""  # set for the payer only


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
    """Return the name of the command that the text starts with, or None if it is not one of ours."""
    word = text.strip().split(maxsplit=1)[0] if text.strip() else ""
    name = word.removeprefix("/").partition("@")[0].lower()
    return name if word.startswith("/") and name in COMMANDS else None


def run_command(name: str, request: CommandRequest) -> CommandResult:
    match name:
        case "link":
            return _create_link(request)
        case "unlink":
            return _revoke_link(request)
        case "new":
            opened = conversations.open_new_conversation(
                request.where, conversations.find_payer(request.where, request.user_id)
            )
            return NewConversationResult(conversation_id=opened.conversation_id, session_id=opened.session_id)
        case "stop":
            return _stop_turns(request)
        case "status":
            return _build_status(request)
        case "settings":
            return SettingsResult(url=f"{settings.SITE_URL}{SETTINGS_PATH}")
        case _:
            return HelpResult(commands=COMMANDS)


def _create_link(request: CommandRequest) -> LinkResult:
    where = request.where
    is_server = where.scope == "server"
    token_request = TokenRequest(
        platform=where.platform,
        bot_account=where.bot_account,
        subject_id=where.server_id if is_server else request.user_id,
        subject_name=request.place_name if is_server else request.display_name,
        requester_name=request.display_name,
        notify_container=where.container_id,
    )
    if is_server:
        token = tokens.create_server_token(token_request, requester_is_admin=request.is_admin)
    else:
        token = tokens.create_user_token(token_request)
    return LinkResult(link_url=token.link_url, qr_url=token.qr_url, expires_at=token.expires_at)


def _revoke_link(request: CommandRequest) -> UnlinkResult:
    # Other administrators of the server cannot revoke the link, but they can remove the bot.
    payer = conversations.find_payer(request.where, request.user_id)
    if not payer.speaks:
        raise Forbidden("Only the person who connected this server can disconnect it.", code="not_the_payer")
    if payer.link is not None:
        links.revoke_server_link(payer.owner_id, payer.link.pk)
    elif payer.user_link is not None:
        links.revoke_user_link(payer.owner_id, payer.user_link.pk)
    return UnlinkResult()


def _stop_turns(request: CommandRequest) -> StopResult:
    payer = conversations.find_payer(request.where, request.user_id)
    conversation = conversations.find_open_conversation(request.where)
    if conversation is None:
        return StopResult(stopped=0)
    return StopResult(stopped=controls.stop_conversation(conversation.session_id, payer, request.user_id))


def _build_status(request: CommandRequest) -> StatusResult:
    try:
        payer = conversations.find_payer(request.where, request.user_id)
    except NotLinked:
        return StatusResult(linked=False)
    conversation = conversations.find_open_conversation(request.where)
    if conversation is None:
        return StatusResult(linked=True)
    url = (
        f"{settings.SITE_URL}{reverse('chat_session', args=[conversation.session_id])}"
        if payer.speaks
        else ""
    )
    return StatusResult(
        linked=True,
        state=chat_selectors.get_session_state(conversation.session_id),
        waiting=len(chat_selectors.get_queue_items(conversation.session_id)),
        web_url=url,
    )
