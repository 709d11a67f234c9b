"""Emails of linking: something was connected, was disconnected by a platform, or waits for approval."""

from __future__ import annotations

import smtplib
from collections.abc import Sequence

import structlog
from django.conf import settings
from django.contrib.auth.models import User
from django.core.mail import send_mail
from django.urls import reverse
from django.utils.translation import gettext as _

from linking.models import LinkToken, PlatformLink
from linking.models.fields import Platform, clean_name

log = structlog.get_logger(__name__)


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
    _send_email(
        user,
        _("A chat account was connected"),
        happened.format(platform=where, name=name)
        + "\n\n"
        + _("If this wasn't you, disconnect it now: {url}\n").format(url=_settings_url()),
    )


def send_bot_removed_email(link: PlatformLink) -> None:
    text = _(
        "The bot was removed from the {platform} server “{name}”, so it no longer answers there.\n\n"
        "Your connected chats: {url}\n"
    )
    name = clean_name(link.server_name) or _("untitled")
    words = text.format(platform=Platform(link.platform).label, name=name, url=_settings_url())
    _send_email(link.owner, _("The bot was removed from a server"), words)


def send_endpoint_disabled_email(user: User, url: str, reason: str) -> None:
    because = _("it answers that it is gone") if reason == "gone" else _("it failed too many times in a row")
    text = _("We stopped delivering events to {url} because {because}. The bot can set the address again.\n")
    _send_email(user, _("A webhook endpoint was turned off"), text.format(url=url, because=because))


def send_approval_waiting_email(user: User, tools: Sequence[str], title: str, url: str) -> None:
    """Ask a person without linked direct messages to decide about calls that have waited for a while."""
    text = _("Approval needed: {tools} in “{title}”.\n\nOpen the chat: {url}\n")
    named = ", ".join(dict.fromkeys(tools))
    words = text.format(tools=named, title=clean_name(title) or _("untitled"), url=url)
    _send_email(user, _("Approval needed"), words)


def _settings_url() -> str:
    return settings.SITE_URL + reverse("connected_chats")


def _send_email(user: User, subject: str, body: str) -> None:
    """Send an email; a failure is logged and never raised."""
    if not user.email:
        return
    try:
        send_mail(subject, body, settings.DEFAULT_FROM_EMAIL, [user.email])
    except (smtplib.SMTPException, OSError) as problem:
        log.warning("link_email_failed", user_id=user.pk, error=type(problem).__name__)
