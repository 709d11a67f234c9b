"""Track whether the bot can still post in a place, and follow places that moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now

from linking.conversations.services import BotAccount
from linking.models import PlatformConversation


def mark_unreachable(conversation_id: UUID) -> None:
    """Mark a conversation in which the platform refuses the bot's messages. Turns continue; answers stay on the web."""
    some = PlatformConversation.objects.reachable().filter(pk=conversation_id)
    some.update(unreachable_at=Now())


def mark_container_unreachable(bot: BotAccount, container_id: str) -> None:
    _container_conversations(bot, container_id).filter(unreachable_at=None).update(unreachable_at=Now())


def mark_container_reachable(bot: BotAccount, container_id: str) -> None:
    _container_conversations(bot, container_id).update(unreachable_at=None)


def move_conversations(platform: str, container_id: str, new_id: str) -> None:
    """Move the conversations of every bot in a container that got a new id, in the caller's transaction.

    Most bots are not told of the move. Conversations that were opened under the new id meanwhile are closed.
    """
    everywhere = PlatformConversation.objects.filter(platform=platform)
    moving = everywhere.filter(container_id=container_id)
    same = moving.open().filter(bot_account=OuterRef("bot_account"), thread_id=OuterRef("thread_id"))
    everywhere.open().filter(Exists(same), container_id=new_id).update(closed_at=Now())
    moving.update(container_id=new_id)


@dataclass(frozen=True, kw_only=True)
class DirectMessagePlace:
    """A conversation in direct messages of one person."""

    conversation_id: UUID
    platform: str
    container_id: str


def list_direct_message_places(user_id: int, accounts: Mapping[str, str]) -> list[DirectMessagePlace]:
    """List the direct message places of a user, the most recently used one for each platform."""
    rows = (
        PlatformConversation.objects.open()
        .reachable()
        .filter(scope="dm", user_link__user=user_id, platform__in=accounts)
        .order_by("last_message_at")
    )
    last = {row.platform: row for row in rows if accounts[row.platform] == row.bot_account}
    return [
        DirectMessagePlace(conversation_id=row.pk, platform=row.platform, container_id=row.container_id)
        for row in last.values()
    ]


def _container_conversations(bot: BotAccount, container_id: str) -> QuerySet[PlatformConversation]:
    return PlatformConversation.objects.filter(
        platform=bot.platform, bot_account=bot.bot_account, container_id=container_id
    )
