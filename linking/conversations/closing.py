"""A conversation ends with its link: later messages there are somebody else's, or nobody's (L8, L9)."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from linking.models import PlatformConversation, PlatformUpdate

STILL_RUNNING = timedelta(days=1)  # a turn of a conversation closed this long ago has ended


def close_of_link(link_id: UUID, bot_account: str | None = None) -> list[UUID]:
    """Of all bots or of one; in the caller's transaction, before the link goes. The sessions in which turns may run."""
    mine = PlatformConversation.objects.filter(link=link_id)
    return _close(mine if bot_account is None else mine.filter(bot_account=bot_account))


def close_of_user_link(user_link_id: UUID) -> list[UUID]:
    return _close(PlatformConversation.objects.filter(user_link=user_link_id))


def _close(some: QuerySet[PlatformConversation]) -> list[UUID]:
    recent = some.filter(Q(closed_at=None) | Q(closed_at__gte=Now() - STILL_RUNNING))
    sessions = list(recent.order_by().values_list("session_id", flat=True).distinct())
    some.filter(closed_at=None).update(closed_at=Now())
    return sessions


def forget_places(user_id: int, limit: int = 500) -> int:
    """An account goes: its map of places, and what came in from there (L25). How many rows, at most a batch.

    Where somebody else talks by now, what came and was not handled yet is theirs.
    """
    mine = PlatformConversation.objects.filter(session__owner=user_id)
    places = list(mine.order_by("id").values_list("id", "platform", "container_id")[:limit])
    removed = 0
    for platform in {platform for _, platform, _ in places}:
        containers = {container for _, where, container in places if where == platform}
        here = PlatformConversation.objects.filter(platform=platform, container_id__in=containers)
        theirs = here.filter(closed_at=None).exclude(session__owner=user_id).values("container_id")
        came = PlatformUpdate.objects.filter(platform=platform, container_id__in=containers)
        removed += came.exclude(done_at=None, container_id__in=theirs).delete()[0]
    removed += PlatformConversation.objects.filter(pk__in=[place for place, _, _ in places]).delete()[0]
    return removed
