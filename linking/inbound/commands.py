"""The commands that every chat knows, as values that an adapter puts into words (L15)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.urls import reverse

from copilot import queries as copilot
from copilot.errors import Forbidden
from copilot.events import SessionState
from linking import conversations, links
from linking.conversations import Where
from linking.errors import NotLinked
from linking.inbound import controls
from linking.links import TokenRequest

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
class Asked:
    """Who gave a command where. `is_admin`: whether the platform says that they administer the server."""

    where: Where
    user_id: str
    display_name: str = ""
    place_name: str = ""  # of the server; of a direct message the display name says it
    is_admin: bool = False


@dataclass(frozen=True, kw_only=True)
class Help:
    commands: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class LinkOffered:
    """For the eyes of who asked alone: whoever opens it may claim the chat (L4)."""

    link_url: str
    qr_url: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class Unlinked:
    pass


@dataclass(frozen=True, kw_only=True)
class Renewed:
    conversation_id: UUID
    session_id: UUID


@dataclass(frozen=True, kw_only=True)
class Halted:
    stopped: int  # turns and waiting messages; 0: nothing was going on


@dataclass(frozen=True, kw_only=True)
class Status:
    linked: bool
    state: SessionState = "idle"
    waiting: int = 0
    web_url: str = ""  # for the payer alone


@dataclass(frozen=True, kw_only=True)
class SettingsAt:
    url: str


Result = Help | LinkOffered | Unlinked | Renewed | Halted | Status | SettingsAt


def command_of(text: str) -> str | None:
    """The command that a text begins with; unknown ones are none of ours."""
    word = text.strip().split(maxsplit=1)[0] if text.strip() else ""
    name = word.removeprefix("/").partition("@")[0].lower()
    return name if word.startswith("/") and name in COMMANDS else None


def obey(name: str, asked: Asked) -> Result:
    """Raises `Refused`, as the doors would."""
    match name:
        case "link":
            return _link(asked)
        case "unlink":
            return _unlink(asked)
        case "new":
            opened = conversations.renew(asked.where, conversations.payer_of(asked.where, asked.user_id))
            return Renewed(conversation_id=opened.conversation_id, session_id=opened.session_id)
        case "stop":
            return _stop(asked)
        case "status":
            return _status(asked)
        case "settings":
            return SettingsAt(url=f"{settings.SITE_URL}{SETTINGS_PATH}")
        case _:
            return Help(commands=COMMANDS)


def _link(asked: Asked) -> LinkOffered:
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
        made = links.create_server_token(request, requester_is_admin=asked.is_admin)
    else:
        made = links.create_user_token(request)
    return LinkOffered(link_url=made.link_url, qr_url=made.qr_url, expires_at=made.expires_at)


def _unlink(asked: Asked) -> Unlinked:
    """By the linked user, or the server's owner; whoever else administers the server may throw the bot out."""
    payer = conversations.payer_of(asked.where, asked.user_id)
    if not payer.speaks:
        raise Forbidden("Only whoever connected this server can disconnect it.", code="not_the_payer")
    if payer.link is not None:
        links.unlink_server(payer.owner_id, payer.link.pk)
    elif payer.user_link is not None:
        links.unlink_user(payer.owner_id, payer.user_link.pk)
    return Unlinked()


def _stop(asked: Asked) -> Halted:
    payer = conversations.payer_of(asked.where, asked.user_id)
    place = conversations.session_at(asked.where)
    if place is None:
        return Halted(stopped=0)
    return Halted(stopped=controls.stop_chat(place.session_id, payer, asked.user_id))


def _status(asked: Asked) -> Status:
    try:
        payer = conversations.payer_of(asked.where, asked.user_id)
    except NotLinked:
        return Status(linked=False)
    place = conversations.session_at(asked.where)
    if place is None:
        return Status(linked=True)
    url = f"{settings.SITE_URL}{reverse('chat_session', args=[place.session_id])}" if payer.speaks else ""
    return Status(
        linked=True,
        state=copilot.state_of(place.session_id),
        waiting=len(copilot.queue_items(place.session_id)),
        web_url=url,
    )
