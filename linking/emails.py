"""Emails of linking: something was connected, was disconnected by a platform, or waits for approval."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib.auth.models import User
from django.utils.translation import gettext as _

from config.core.emails import build_site_link, send_email
from linking.models import LinkToken, PlatformLink
from linking.models.fields import Platform, clean_name


def send_linked_email(token: LinkToken, user: User) -> None:
    """Tell the owner about a new link, and how to remove it if somebody else made it."""
    where = Platform(token.platform).label
    name = clean_name(token.subject_name) or _("untitled")
    if token.kind == LinkToken.Kind.SERVER:
        happened = _(
            "The {platform} server “{name}” was connected to your account. Everyone there can chat, and you pay for it "
            "within the limits you set."
        )
    else:
        happened = _(
            "The {platform} account “{name}” was connected to your account. Messages from it count as yours."
        )
    send_email(
        [user.email],
        _("A chat account was connected"),
        happened.format(platform=where, name=name)
        + "\n\n"
        + _("If this wasn't you, disconnect it now: {url}\n").format(url=build_site_link("connected_chats")),
    )


def send_bot_removed_email(link: PlatformLink) -> None:
    text = _(
        "The bot was removed from the {platform} server “{name}”, so it no longer answers there.\n\n"
        "Your connected chats: {url}\n"
    )
    name = clean_name(link.server_name) or _("untitled")
    words = text.format(
        platform=Platform(link.platform).label, name=name, url=build_site_link("connected_chats")
    )
    send_email([link.owner.email], _("The bot was removed from a server"), words)


def send_endpoint_disabled_email(user: User, url: str, reason: str) -> None:
    because = (
        _("it says the address no longer exists")
        if reason == "gone"
        else _("it failed too many times in a row")
    )
    text = _("We stopped delivering events to {url} because {because}. The bot can set the address again.\n")
    send_email([user.email], _("A webhook endpoint was turned off"), text.format(url=url, because=because))


def send_approval_waiting_email(user: User, tools: Sequence[str], title: str, url: str) -> None:
    """Ask a person without linked direct messages to decide about calls that have waited for a while."""
    text = _("Approval needed: {tools} in “{title}”.\n\nOpen the chat: {url}\n")
    named = ", ".join(dict.fromkeys(tools))
    words = text.format(tools=named, title=clean_name(title) or _("untitled"), url=url)
    send_email([user.email], _("Approval needed"), words)
