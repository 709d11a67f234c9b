"""Reads of linking: who is linked, what an owner has, what runs; never writes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Max

from linking.models import BotRunner, LinkToken, PlatformLink, PlatformUpdate, PlatformUserLink

# --- resolving ---------------------------------------------------------------------------------------
# A server is found by its own link alone, a direct message by its sender's; there is no way from one to the other,
# and an account that is shut has no links (L9).


def server_link(platform: str, server_id: str) -> PlatformLink | None:
    standing = PlatformLink.objects.filter(platform=platform, server_id=server_id, owner__is_active=True)
    return standing.first()


def user_link(platform: str, platform_user_id: str) -> PlatformUserLink | None:
    standing = PlatformUserLink.objects.filter(platform=platform, platform_user_id=platform_user_id)
    return standing.filter(user__is_active=True).first()


def is_linked(kind: str, platform: str, subject_id: str, *, to: int | None = None) -> bool:
    """To this user, or to anybody."""
    if kind == "server":
        server = server_link(platform, subject_id)
        return server is not None and to in (None, server.owner_id)
    person = user_link(platform, subject_id)
    return person is not None and to in (None, person.user_id)


def is_identity_of(user_id: int, platform: str, platform_user_id: str) -> bool:
    """Whether this chat account is the user's own: who may decide for the payer in a server (L14)."""
    return is_linked("user", platform, platform_user_id, to=user_id)


def token_by_digest(digest: str) -> LinkToken | None:
    return LinkToken.objects.filter(digest=digest).first()


# --- what an owner sees ------------------------------------------------------------------------------


def server_link_by_id(link_id: UUID) -> PlatformLink | None:
    return PlatformLink.objects.filter(pk=link_id).first()


# --- what staff and the doctor see -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunnerFacts:
    """A bot account's runner: is somebody there, and when did it last hear anything (L24)."""

    platform: str
    bot_account: str
    holder: str
    until: datetime
    last_update_at: datetime | None


def runners() -> list[RunnerFacts]:
    return [
        RunnerFacts(
            platform=row.platform,
            bot_account=row.bot_account,
            holder=row.holder,
            until=row.until,
            last_update_at=row.last_update_at,
        )
        for row in BotRunner.objects.order_by("platform", "bot_account")
    ]


def last_update_at(platform: str) -> datetime | None:
    """When a platform last told us anything, by whichever door."""
    found = PlatformUpdate.objects.filter(platform=platform).aggregate(last=Max("received_at"))
    last: datetime | None = found["last"]
    return last


def oldest_waiting_update_at() -> datetime | None:
    """Since when the oldest unhandled update waits; None when none does."""
    waiting = PlatformUpdate.objects.filter(done_at=None).order_by("id")
    return waiting.values_list("received_at", flat=True).first()
