"""Whether a message in a linked server may start a turn: one order of checks, the first failure decides (L8)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.conf import settings

from billing import errors as billing_errors
from billing import usage as billing_usage
from linking import pace
from linking.caps.reserving import check_room, release, reserve
from linking.errors import MessageRefused
from linking.models import PlatformLink


@dataclass(frozen=True, kw_only=True)
class Said:
    """A message as the owner's rules see it. `container_id` is the channel: threads go with theirs.

    `mentioned`: it was meant for the bot, by mention, reply or command; what a bot sends over REST always is.
    """

    run_id: str
    container_id: str
    platform_user_id: str
    role_ids: Collection[str] = ()
    mentioned: bool = True


def admit(link: PlatformLink, said: Said) -> None:
    """Set the message's share aside, or refuse it; both the server's caps and its owner's limits must pass."""
    _check_rules(link, said)
    _check_channel_rate(link, said)
    reserve(link.pk, said.run_id, said.container_id, said.platform_user_id)
    try:
        billing_usage.check(link.owner_id)
    except billing_errors.LimitReached as reached:
        release(said.run_id)
        raise MessageRefused("limit_reached") from reached


def foresee(link: PlatformLink, said: Said) -> None:
    """Refuse what `admit` would refuse now, before anything is fetched for it; nothing is set aside."""
    _check_rules(link, said)
    check_room(link, said.platform_user_id)


def _check_rules(link: PlatformLink, said: Said) -> None:
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


def _check_channel_rate(link: PlatformLink, said: Said) -> None:
    wait = pace.hit(
        "channel",
        f"{link.pk}:{said.container_id}",
        limit=settings.LINK_CHANNEL_MESSAGES,
        seconds=settings.LINK_CHANNEL_SECONDS,
    )
    if wait is not None:
        raise MessageRefused("channel_rate_reached", retry_after_seconds=wait)
