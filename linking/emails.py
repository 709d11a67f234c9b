"""Emails of linking: something was connected, was disconnected by a platform, or waits for approval."""

from __future__ import annotations

import logging
import smtplib
from collections.abc import Sequence

from django.conf import settings
from django.contrib.auth.models import User
from django.core.mail import send_mail
from django.urls import reverse
from django.utils.translation import gettext as _

from linking.display_names import clean_name
from linking.models import LinkToken, PlatformLink
from linking.models.fields import Platform

log = logging.getLogger(__name__)


def send_linked_email(token: LinkToken, user: User) -> None:
    """Whoever did not do this learns of it, and how to undo it."""
    where = Platform(token.platform).label
    name = clean_name(token.subject_name) or _("without a name")
    if token.kind == LinkToken.Kind.SERVER:
        happened = _(
            "The {platform} server “{name}” was connected to your account: everyone there may chat at your cost, "
            "within the limits you set."
        )
    else:
        happened = _("The {platform} account “{name}” was connected to your account: it acts as you there.")
    _send_email(
        user,
        _("A chat account was connected"),
        happened.format(platform=where, name=name)
        + "\n\n"
        + _("If this was not you, disconnect it now: {url}\n").format(url=_settings_url()),
    )


def send_bot_removed_email(link: PlatformLink) -> None:
    """The bot was taken out of a server: nothing can be said there until it is added and linked again."""
    text = _(
        "The bot was removed from the {platform} server “{name}”, so it does not answer there any more.\n\n"
        "Your connected chats: {url}\n"
    )
    name = clean_name(link.server_name) or _("without a name")
    words = text.format(platform=Platform(link.platform).label, name=name, url=_settings_url())
    _send_email(link.owner, _("The bot was removed from a server"), words)


def send_endpoint_disabled_email(user: User, url: str, reason: str) -> None:
    """Whoever made a bot's key learns that its endpoint is not told of anything any more."""
    because = _("it says it is gone") if reason == "gone" else _("it has failed too often in a row")
    text = _("Nothing is delivered to {url} any more: {because}. Its bot can set the address anew.\n")
    _send_email(user, _("A delivery endpoint was switched off"), text.format(url=url, because=because))


def send_approval_waiting_email(user: User, tools: Sequence[str], title: str, url: str) -> None:
    """A call has waited for a while, and this is the only other way to reach whom it waits for."""
    text = _("The agent waits for your decision about {tools} in “{title}”.\n\nOpen the chat: {url}\n")
    named = ", ".join(dict.fromkeys(tools))
    words = text.format(tools=named, title=clean_name(title) or _("without a name"), url=url)
    _send_email(user, _("The agent waits for your decision"), words)


def _settings_url() -> str:
    return settings.SITE_URL + reverse("connected_chats")


def _send_email(user: User, subject: str, body: str) -> None:
    """A mail that cannot be sent stops nothing."""
    if not user.email:
        return
    try:
        send_mail(subject, body, settings.DEFAULT_FROM_EMAIL, [user.email])
    except (smtplib.SMTPException, OSError) as problem:
        log.warning("a mail about a link could not be sent: %s", type(problem).__name__)
