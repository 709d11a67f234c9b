"""Decide whether a message in a linked server may start a turn. The checks have one order, and the first failure decides."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.conf import settings

from billing import errors
from billing.usage import limit_checks
from config.core import rate_limits
from linking.caps.reservations import check_cap, release_reservation, reserve_cap
from linking.errors import MessageRefused
from linking.models import PlatformLink


@dataclass(frozen=True, kw_only=True)
class ServerMessage:
    """A message as the owner's rules see it. `container_id` is the channel: threads go with theirs.

    `mentioned`: it was meant for the bot, by mention, reply or command; what a bot sends over REST always is.
    """

    run_id: str
    container_id: str
    platform_user_id: str
    role_ids: Collection[str] = ()
    mentioned: bool = True


def admit_message(link: PlatformLink, said: ServerMessage) -> None:
    """Set the message's share aside, or refuse it; both the server's caps and its owner's limits must pass."""
    _check_link_rules(link, said)
    _check_channel_rate(link, said)
    reserve_cap(link.pk, said.run_id, said.container_id, said.platform_user_id)
    try:
        limit_checks.check_limits(link.owner_id)
    except errors.LimitReached as reached:
        release_reservation(said.run_id)
        raise MessageRefused("limit_reached") from reached


def check_message(link: PlatformLink, said: ServerMessage) -> None:
    """Refuse what `admit` would refuse now, before anything is fetched for it; nothing is set aside."""
    _check_link_rules(link, said)
    check_cap(link, said.platform_user_id)


def _check_link_rules(link: PlatformLink, said: ServerMessage) -> None:
    if link.state == PlatformLink.State.BOT_REMOVED:
        raise MessageRefused("bot_removed", aloud=said.mentioned)
    if link.state == PlatformLink.State.PAUSED:
        raise MessageRefused("link_paused", aloud=said.mentioned)
    if link.allowed_channels and said.container_id not in link.allowed_channels:
        raise MessageRefused("channel_not_allowed", aloud=said.mentioned)
    if link.allowed_roles and not set(link.allowed_roles) & set(said.role_ids):
        raise MessageRefused("role_not_allowed", aloud=said.mentioned)
    if link.require_mention and not said.mentioned:
        raise MessageRefused("mention_required", aloud=False)


def _check_channel_rate(link: PlatformLink, said: ServerMessage) -> None:
    wait = rate_limits.count_in_sliding_window(
        "channel",
        f"{link.pk}:{said.container_id}",
        limit=settings.LINK_CHANNEL_MESSAGES,
        seconds=settings.LINK_CHANNEL_SECONDS,
    )
    if wait is not None:
        raise MessageRefused("channel_rate_reached", retry_after_seconds=wait)
