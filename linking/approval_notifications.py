"""Notify people of approvals that wait, by direct message on a linked platform, else by email."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.urls import reverse

from config.core import rate_limits
from copilot.chat import selectors as chat_selectors
from copilot.chat import serializers as chat_serializers
from copilot.chat import turn_details
from linking import bot_messages, emails
from linking.conversations import reachability
from linking.outbound import notices, worker
from linking.outbound.notices import Notice
from linking.platforms.base import MessageButton, OutboundAddress

NOTIFY_WINDOW_SECONDS = (
    600  # an approval that waits longer was notified, or could not be; it is not notified again
)
NOTIFY_ONCE_SECONDS = 3_600


def claim_turns_to_notify() -> list[UUID]:
    """Claim turns whose approvals have waited for a while, each once. People who are present decide earlier."""
    after = settings.APPROVAL_ANNOUNCE_SECONDS
    if not after:
        return []
    found = turn_details.list_turns_waiting_since(seconds=after, within=NOTIFY_WINDOW_SECONDS)
    return [
        turn_id
        for turn_id in found
        if rate_limits.is_first_in_window("announced", str(turn_id), seconds=NOTIFY_ONCE_SECONDS)
    ]


def notify_waiting_turn(turn_id: UUID) -> None:
    standing = turn_details.get_turn_details(turn_id)
    if standing is None or standing.is_session_deleted or standing.status != "waiting":
        return
    tools = [
        one.tool.replace("_", " ").capitalize()
        for one in chat_serializers.list_open_approvals(standing.session_id)
        if one.turn_id == str(turn_id)
    ]
    if not tools:
        return
    title = chat_selectors.get_session(standing.owner_id, standing.session_id).title
    url = settings.SITE_URL + reverse("chat_session", args=[standing.session_id])
    own = standing.reply.conversation_id if standing.reply else ""
    places = [
        place
        for place in reachability.list_direct_message_places(standing.owner_id, worker.get_own_accounts())
        if str(place.conversation_id) != own
    ]
    text, open_chat = (
        bot_messages.format_waiting(tools, title),
        MessageButton(label=bot_messages.OPEN_CHAT_LABEL, url=url),
    )
    shown_there = standing.reply is not None and standing.reply.of_payer
    by_mail = None if shown_there else partial(_email_owner, standing.owner_id, tools, title, url)
    if places:
        notes = [(place.platform, _build_notice(place.container_id, text, open_chat)) for place in places]
        notices.send_to_all(notes, otherwise=by_mail)
    elif by_mail is not None:
        by_mail()


def _build_notice(container_id: str, text: str, button: MessageButton) -> Notice:
    return Notice(to=OutboundAddress(scope="dm", container_id=container_id), text=text, buttons=(button,))


def _email_owner(owner_id: int, tools: list[str], title: str, url: str) -> None:
    emails.send_approval_waiting_email(User.objects.get(pk=owner_id), tools, title, url)
