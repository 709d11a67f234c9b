"""A call that waits for a person is announced where else that person can be reached: direct messages, else a mail (A11.12)."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.urls import reverse

from copilot import queries, turns
from linking import conversations, mails, outbound, pace, wording
from linking.outbound import Note
from linking.platforms.base import Address, Button

WITHIN_SECONDS = 600  # what waits longer was announced, or nobody could tell; it is not called out again
ONCE_SECONDS = 3_600


def due() -> list[UUID]:
    """Turns that nobody has decided about for a while: who is there needs no call. Each is named once."""
    after = settings.APPROVAL_ANNOUNCE_SECONDS
    if not after:
        return []
    found = turns.waiting_since(seconds=after, within=WITHIN_SECONDS)
    return [turn_id for turn_id in found if pace.first("announced", str(turn_id), seconds=ONCE_SECONDS)]


def announce(turn_id: UUID) -> None:
    standing = turns.standing(turn_id)
    if standing is None or standing.is_gone or standing.status != "waiting":
        return
    tools = [one.tool for one in queries.open_approvals(standing.session_id) if one.turn_id == str(turn_id)]
    if not tools:
        return
    title = queries.session_of(standing.owner_id, standing.session_id).title
    url = settings.SITE_URL + reverse("chat_session", args=[standing.session_id])
    own = standing.reply.conversation_id if standing.reply else ""
    places = [
        place
        for place in conversations.direct_messages(standing.owner_id, outbound.accounts())
        if str(place.conversation_id) != own
    ]
    text, open_chat = wording.waits(tools, title), Button(label=wording.OPEN_CHAT, url=url)
    shown_there = standing.reply is not None and standing.reply.of_payer
    by_mail = None if shown_there else partial(_write, standing.owner_id, tools, title, url)
    if places:
        notes = [(place.platform, _note(place.container_id, text, open_chat)) for place in places]
        outbound.reach(notes, otherwise=by_mail)
    elif by_mail is not None:
        by_mail()


def _note(container_id: str, text: str, button: Button) -> Note:
    return Note(to=Address(scope="dm", container_id=container_id), text=text, buttons=(button,))


def _write(owner_id: int, tools: list[str], title: str, url: str) -> None:
    mails.say_waiting(User.objects.get(pk=owner_id), tools, title, url)
