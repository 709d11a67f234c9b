"""Read links, their usage, and the health of bots and deliveries. Nothing here writes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Count, F, Max, Q, QuerySet, Sum
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext as _

from config.core.errors import InvalidRequest
from linking.errors import LinkNotFound, LinkTokenExpired, NotAuthorised
from linking.models import (
    BotKey,
    BotRunner,
    CapReservation,
    Delivery,
    LinkToken,
    LinkUsage,
    Platform,
    PlatformLink,
    PlatformUpdate,
    PlatformUserLink,
)
from linking.models.fields import clean_name
from linking.platforms import registry

MAX_TOP_CHANNELS = 5

# --- taking along ------------------------------------------------------------------------------------


def export_links(user_id: int, **_signal: object) -> dict[str, object]:
    """Receive `account_exporting`: return the links of the account, without secrets."""
    servers = PlatformLink.objects.filter(owner=user_id).order_by("created_at", "pk")
    people = PlatformUserLink.objects.filter(user=user_id).order_by("created_at", "pk")
    return {
        "linked_servers": list(
            servers.values("platform", "bot_account", "server_id", "server_name", "state", "created_at")
        ),
        "linked_chats": list(
            people.values("platform", "bot_account", "platform_user_id", "display_name", "created_at")
        ),
    }


# --- resolving ---------------------------------------------------------------------------------------
# A server is found by its own link alone, a direct message by its sender's; there is no way from one to the other,
# and an account that is shut has no links.


def find_server_link(platform: str, bot_account: str, server_id: str) -> PlatformLink | None:
    """Find the link through which this bot acts in a server; links of other bots do not count."""
    standing = PlatformLink.objects.filter(platform=platform, bot_account=bot_account, server_id=server_id)
    return standing.filter(owner__is_active=True).first()


def find_user_link(platform: str, bot_account: str, platform_user_id: str) -> PlatformUserLink | None:
    """Find the link through which this bot acts for a person; links of other bots do not count."""
    standing = PlatformUserLink.objects.filter(
        platform=platform, bot_account=bot_account, platform_user_id=platform_user_id
    )
    return standing.filter(user__is_active=True).first()


def is_linked(kind: str, platform: str, bot_account: str, subject_id: str, *, to: int | None = None) -> bool:
    """Return True if it is linked to this user, or to anybody. A server that removed the bot needs a new link."""
    if kind == "server":
        server = find_server_link(platform, bot_account, subject_id)
        if server is None or server.state == PlatformLink.State.BOT_REMOVED:
            return False
        return to in (None, server.owner_id)
    person = find_user_link(platform, bot_account, subject_id)
    return person is not None and to in (None, person.user_id)


def is_own_chat_account(user_id: int, platform: str, bot_account: str, platform_user_id: str) -> bool:
    """Return True if this chat account is linked to the user by this bot; only then may it decide for the payer in a server."""
    return is_linked("user", platform, bot_account, platform_user_id, to=user_id)


def is_account_active(user_id: int) -> bool:
    """Return True for an active account; a closed one has no links and starts no turns."""
    return User.objects.filter(pk=user_id, is_active=True).exists()


def find_token(digest: str) -> LinkToken | None:
    return LinkToken.objects.filter(digest=digest).first()


def get_pending_token(digest: str) -> LinkToken:
    """Return a token that can be confirmed now. Raise LinkNotFound or LinkTokenExpired."""
    row = find_token(digest)
    if row is None:
        raise LinkNotFound
    if not is_token_pending(row):
        raise LinkTokenExpired
    return row


def is_token_pending(row: LinkToken) -> bool:
    """Compare with the database's clock."""
    usable = LinkToken.objects.pending().filter(pk=row.pk)
    return usable.exists()


def is_token_confirmed_by(row: LinkToken, user_id: int) -> bool:
    """Return True if this user confirmed the token and its link still exists."""
    if row.used_by_id != user_id:
        return False
    return is_linked(row.kind, row.platform, row.bot_account, row.subject_id, to=user_id)


def get_minutes_left(row: LinkToken) -> int:
    """Return the minutes to show; the database decides whether the token is still valid."""
    return max(1, math.ceil((row.expires_at - timezone.now()).total_seconds() / 60))


# --- what an owner sees ------------------------------------------------------------------------------

L = TypeVar("L", PlatformLink, PlatformUserLink)


@dataclass(frozen=True, kw_only=True)
class LinksPage(Generic[L]):
    items: list[L]
    next_cursor: str | None


def list_server_links(user_id: int, *, cursor: str = "", limit: int = 50) -> LinksPage[PlatformLink]:
    return _paginate(PlatformLink.objects.filter(owner=user_id), cursor, limit)


def owns_server_link(user_id: int, link_id: UUID) -> bool:
    return PlatformLink.objects.filter(owner=user_id, pk=link_id).exists()


def list_user_links(user_id: int, *, cursor: str = "", limit: int = 50) -> LinksPage[PlatformUserLink]:
    return _paginate(PlatformUserLink.objects.filter(user=user_id), cursor, limit)


def _paginate(mine: QuerySet[L], cursor: str, limit: int) -> LinksPage[L]:
    """Return a page, newest first; the cursor is the last link of the page before."""
    if cursor:
        moment, link_id = _parse_cursor(cursor)
        mine = mine.filter(Q(created_at__lt=moment) | Q(created_at=moment, pk__gt=link_id))
    rows = list(mine.order_by("-created_at", "id")[: limit + 1])
    more = len(rows) > limit
    last = rows[limit - 1] if more else None
    following = f"{last.created_at.timestamp():.6f}_{last.pk}" if last else None
    return LinksPage(items=rows[:limit], next_cursor=following)


def _parse_cursor(cursor: str) -> tuple[datetime, UUID]:
    moment, _, link_id = cursor.partition("_")
    try:
        return datetime.fromtimestamp(float(moment), UTC), UUID(link_id)
    except (ValueError, OverflowError, OSError):
        raise InvalidRequest("cursor: not a valid cursor.") from None


@dataclass(frozen=True, kw_only=True)
class ChannelTurns:
    container_id: str
    turns: int


@dataclass(frozen=True, kw_only=True)
class LinkUsageView:
    """Percentages of the caps that are spent or reserved; null without a cap. Days and months are UTC."""

    daily_percent: int | None
    monthly_percent: int | None
    daily_cap_microdollars: int | None
    monthly_cap_microdollars: int | None
    top_channels: list[ChannelTurns]


def get_link_usage(user_id: int, link_id: UUID) -> LinkUsageView:
    """Raise LinkNotFound or NotAuthorised."""
    link = PlatformLink.objects.filter(pk=link_id).first()
    if link is None:
        raise LinkNotFound
    if link.owner_id != user_id:
        raise NotAuthorised
    return build_link_usage(link)


def build_link_usage(link: PlatformLink) -> LinkUsageView:
    today = timezone.now().astimezone(UTC).date()
    month = today.replace(day=1)
    taken = F("spent_microdollars") + F("reserved_microdollars")
    totals = LinkUsage.objects.filter(link=link, day__gte=month).aggregate(
        today=Sum(taken, filter=Q(day=today)), month=Sum(taken)
    )
    began = datetime(month.year, month.month, 1, tzinfo=UTC)
    said = CapReservation.objects.filter(link=link, created_at__gte=began).values("container_id")
    channels = said.annotate(turns=Count("id")).order_by("-turns", "container_id")[:MAX_TOP_CHANNELS]
    return LinkUsageView(
        daily_percent=_percent_used(totals["today"], link.daily_cap_microdollars),
        monthly_percent=_percent_used(totals["month"], link.monthly_cap_microdollars),
        daily_cap_microdollars=link.daily_cap_microdollars,
        monthly_cap_microdollars=link.monthly_cap_microdollars,
        top_channels=[ChannelTurns(container_id=one["container_id"], turns=one["turns"]) for one in channels],
    )


def _percent_used(taken: int | None, cap: int | None) -> int | None:
    """Return the percentage; a cap of 0 is always used up."""
    if cap is None:
        return None
    return 100 if cap == 0 else 100 * int(taken or 0) // cap


# --- what staff and the doctor see -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunnerFacts:
    """The runner of a bot account: whether it runs, and when it last received anything."""

    platform: str
    bot_account: str
    holder: str
    until: datetime
    last_update_at: datetime | None


def list_runners() -> list[RunnerFacts]:
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


@dataclass(frozen=True, kw_only=True)
class TrafficFacts:
    """Health figures of one direction: a platform's updates, or webhook deliveries."""

    name: str
    last_at: datetime | None
    handled_1h: int
    failed_1h: int
    error_rate_1h: float | None  # None without traffic
    given_up: int  # of all stored rows: not retried any more


DELIVERIES_NAME = "deliveries"


def list_traffic_facts() -> list[TrafficFacts]:
    """List the directions with stored updates or deliveries."""
    handled = Q(done_at__isnull=False)
    updates = PlatformUpdate.objects.values(name=F("platform")).annotate(
        **_build_counts("received_at", handled=handled, failed=Q(outcome="failed"))
    )
    sent = Delivery.objects.aggregate(
        **_build_counts("created_at", handled=~Q(state="waiting"), failed=Q(state="failed"))
    )
    found = [*updates.order_by("name"), *([{"name": DELIVERIES_NAME, **sent}] if sent["last_at"] else [])]
    return [
        TrafficFacts(**one, error_rate_1h=_error_rate(one["failed_1h"], one["handled_1h"])) for one in found
    ]


def _build_counts(since: str, *, handled: Q, failed: Q) -> dict[str, Max | Count]:
    recent = Q(**{f"{since}__gte": Now() - timedelta(hours=1)})
    return {
        "last_at": Max(since),
        "handled_1h": Count("pk", filter=handled & recent),
        "failed_1h": Count("pk", filter=failed & recent),
        "given_up": Count("pk", filter=failed),
    }


def _error_rate(failed: int, handled: int) -> float | None:
    return round(failed / handled, 4) if handled else None


@dataclass(frozen=True, kw_only=True)
class Backlogs:
    """Counts of waiting and given-up updates and messages."""

    updates_waiting: int
    deliveries_waiting: int
    deliveries_failed: int


def get_backlogs() -> Backlogs:
    sent = Delivery.objects.filter(Q(state="waiting") | Q(state="failed")).aggregate(
        waiting=Count("pk", filter=Q(state="waiting")), failed=Count("pk", filter=Q(state="failed"))
    )
    return Backlogs(
        updates_waiting=PlatformUpdate.objects.unhandled().count(),
        deliveries_waiting=sent["waiting"],
        deliveries_failed=sent["failed"],
    )


# --- Bots ---


@dataclass(frozen=True, kw_only=True)
class OfferedBot:
    platform: str
    name: str
    url: str
    how: str


def list_offered_bots() -> list[OfferedBot]:
    """List the platforms that are configured and can be opened by a URL."""
    found: list[OfferedBot] = []
    if settings.TELEGRAM_BOT_TOKEN and settings.TELEGRAM_BOT_NAME:
        url = f"https://t.me/{settings.TELEGRAM_BOT_NAME}"
        found.append(
            _build_offer(Platform.TELEGRAM, url, "Open the bot and press Start, or add it to a group.")
        )
    if settings.DISCORD_BOT_TOKEN and settings.DISCORD_APP_ID:
        asked = {"client_id": settings.DISCORD_APP_ID, "scope": "bot applications.commands"}
        url = f"https://discord.com/oauth2/authorize?{urlencode(asked)}"
        found.append(_build_offer(Platform.DISCORD, url, "Add the bot to a server, or message it."))
    if settings.SLACK_BOT_TOKEN and settings.SLACK_APP_URL:
        found.append(_build_offer(Platform.SLACK, settings.SLACK_APP_URL, "Open the app in your workspace."))
    return found


def _build_offer(platform: Platform, url: str, how: str) -> OfferedBot:
    return OfferedBot(platform=platform.value, name=platform.label, url=url, how=how)


def get_bot_names(accounts: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Name the bots behind (platform, bot account) pairs as staff named them."""
    wanted = set(accounts)
    ours = {(adapter.platform, adapter.bot_account) for adapter in registry.iter_enabled_adapters()}
    keys = BotKey.objects.filter(bot_account__in={account for _, account in wanted}).order_by("created_at")
    named = {(key.platform, key.bot_account): key.name for key in keys}
    return {
        one: _("Pilothouse's bot") if one in ours else clean_name(named.get(one, "")) or one[1]
        for one in wanted
    }
