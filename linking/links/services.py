"""Change, pause and revoke links, and remove them together with an account."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Literal, TypedDict
from uuid import UUID

import structlog
from django.db import transaction
from django.db.models import Case, F, Func, Q, Value, When
from django.db.models.functions import Now

from config.core.errors import InvalidRequest, ServiceUnavailable
from copilot.chat import stop
from linking.conversations import services as conversations
from linking.conversations.services import BotAccount
from linking.errors import LinkNotFound, NotAuthorised
from linking.models import (
    PLATFORM_ID_PATTERN,
    BotKey,
    CapReservation,
    LinkToken,
    PlatformLink,
    PlatformUserLink,
)
from linking.models.links import MAX_LIST_ENTRIES

log = structlog.get_logger(__name__)
audit = structlog.get_logger("linking.audit")

MAX_CAP_MICRODOLLARS = 10**15  # a thousand million dollars; more is a typing error
MAX_MEMBER_TURNS = 10_000
TOKEN_RETENTION = timedelta(days=30)  # tokens are kept so that bots can ask for their status
UNKNOWN_BOT_ACCOUNT = ""  # in links from before links recorded their bot account
TOOL_NAME_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class ServerSettings(TypedDict, total=False):
    """Settings an owner may change; missing keys leave a setting as it is."""

    state: Literal["active", "paused"]
    daily_cap_microdollars: int | None
    monthly_cap_microdollars: int | None
    member_turns_per_hour: int
    allowed_channels: list[str]
    allowed_roles: list[str]
    require_mention: bool
    tools: list[str]


def update_server_link(user_id: int, link_id: UUID, changes: ServerSettings) -> PlatformLink:
    """Change a server link. Raise LinkNotFound, NotAuthorised or InvalidRequest."""
    validate_server_settings(changes)
    with transaction.atomic():
        link = _lock_server_link(user_id, link_id)
        if "state" in changes and link.state == PlatformLink.State.BOT_REMOVED:
            raise InvalidRequest("state: the bot was removed from this server. Link the server again.")
        for field, value in changes.items():
            setattr(link, field, value)
        link.save(update_fields=[*changes])
    return link


def validate_server_settings(changes: ServerSettings | None) -> None:
    for name, value in (changes or {}).items():
        match value:
            case list():
                _validate_list(name, value)
            case int() if name.endswith("_microdollars") and not 0 <= value <= MAX_CAP_MICRODOLLARS:
                raise InvalidRequest(f"{name}: must be between 0 and {MAX_CAP_MICRODOLLARS}.")
            case int() if name == "member_turns_per_hour" and not 0 <= value <= MAX_MEMBER_TURNS:
                raise InvalidRequest(f"{name}: must be between 0 and {MAX_MEMBER_TURNS}.")


def _validate_list(name: str, values: list[str]) -> None:
    pattern = TOOL_NAME_PATTERN if name == "tools" else re.compile(PLATFORM_ID_PATTERN, re.ASCII)
    if len(values) > MAX_LIST_ENTRIES:
        raise InvalidRequest(f"{name}: use at most {MAX_LIST_ENTRIES} entries.")
    if not all(pattern.fullmatch(value) for value in values):
        raise InvalidRequest(f"{name}: one of the entries is not a valid id or name.")


# --- Revocation and moves ---


def revoke_server_link(user_id: int, link_id: UUID) -> None:
    """Delete the link and close its conversations, then stop what runs there. Sessions stay."""
    with transaction.atomic():
        _revoke_link(_lock_server_link(user_id, link_id))


def revoke_user_link(user_id: int, link_id: UUID) -> None:
    with transaction.atomic():
        link = PlatformUserLink.objects.select_for_update().filter(pk=link_id).first()
        if link is None:
            raise LinkNotFound
        if link.user_id != user_id:
            raise NotAuthorised
        _revoke_link(link)


def mark_bot_removed(bot: BotAccount, server_id: str) -> PlatformLink | None:
    """Record that a bot was removed from a server, and stop what runs there.

    Return None if that was recorded before, because platforms report it more than once.
    """
    with transaction.atomic():
        rows = PlatformLink.objects.select_for_update().exclude(state=PlatformLink.State.BOT_REMOVED)
        link = rows.filter(platform=bot.platform, bot_account=bot.bot_account, server_id=server_id).first()
        if link is None:
            return None
        _stop_sessions_on_commit(conversations.close_link_conversations(link.pk))
        link.state = PlatformLink.State.BOT_REMOVED
        link.save(update_fields=["state"])
    return link


def change_server_id(platform: str, old_id: str, new_id: str) -> None:
    """Move links, their settings and pending tokens to a server's new id, in the caller's transaction.

    A group is its own channel, so its id may also be among the allowed channels.
    """
    PlatformLink.objects.filter(platform=platform, server_id=old_id).update(
        server_id=new_id,
        allowed_channels=Func(F("allowed_channels"), Value(old_id), Value(new_id), function="array_replace"),
    )
    pending = LinkToken.objects.unused().filter(platform=platform, kind="server")
    if pending.filter(subject_id=old_id).exists():
        pending.filter(subject_id=new_id).update(superseded_at=Now())
        pending.filter(subject_id=old_id).update(
            subject_id=new_id, notify_container=_replace_container(old_id, new_id)
        )


def _replace_container(old_id: str, new_id: str) -> Case:
    return Case(When(notify_container=old_id, then=Value(new_id)), default=F("notify_container"))


def revoke_dead_links(kind: str, platform: str, bot_account: str, subject_id: str) -> None:
    """Revoke links of deactivated accounts, removed bots and unknown bots, in the caller's transaction."""
    of_bot = Q(platform=platform, bot_account__in=(bot_account, UNKNOWN_BOT_ACCOUNT))
    unknown = Q(bot_account=UNKNOWN_BOT_ACCOUNT)
    if kind == "server":
        servers = PlatformLink.objects.filter(of_bot, server_id=subject_id)
        dead = Q(owner__is_active=False) | Q(state=PlatformLink.State.BOT_REMOVED) | unknown
        for link in servers.filter(dead).select_for_update(of=("self",)):
            _revoke_link(link)
    else:
        people = PlatformUserLink.objects.filter(of_bot, platform_user_id=subject_id)
        dead = Q(user__is_active=False) | unknown
        for chat_account in people.filter(dead).select_for_update(of=("self",)):
            _revoke_link(chat_account)


def _lock_server_link(user_id: int, link_id: UUID) -> PlatformLink:
    link = PlatformLink.objects.select_for_update().filter(pk=link_id).first()
    if link is None:
        raise LinkNotFound
    if link.owner_id != user_id:
        raise NotAuthorised
    return link


def _revoke_link(link: PlatformLink | PlatformUserLink) -> None:
    if isinstance(link, PlatformLink):
        running = conversations.close_link_conversations(link.pk)
    else:
        running = conversations.close_user_link_conversations(link.pk)
    name, link_id = type(link).__name__, link.pk
    link.delete()
    transaction.on_commit(lambda: audit.info("link_revoked", model=name, link_id=link_id))
    _stop_sessions_on_commit(running)


def _stop_sessions_on_commit(session_ids: Iterable[UUID]) -> None:
    """Stop the sessions after the commit, when no new turn can start there any more."""

    def stop_sessions() -> None:
        for session_id in session_ids:
            try:
                stop.end_session_activity(session_id)
            except ServiceUnavailable:
                # The turn runs to its end.
                log.warning("session_stop_failed", session_id=session_id)

    transaction.on_commit(stop_sessions)


# --- Account deletion and retention ---


def revoke_account_links(user_id: int, **_signal: object) -> int:
    """Receive `account_closing`: revoke all links and delete the conversations; return how many.

    Runs before the sessions are deleted, because they say which conversations belong to the account.
    """
    with transaction.atomic():
        for server in PlatformLink.objects.select_for_update().filter(owner=user_id):
            _delete_tokens("server", server.platform, server.server_id)
            _revoke_link(server)
        for chat_account in PlatformUserLink.objects.select_for_update().filter(user=user_id):
            _delete_tokens("user", chat_account.platform, chat_account.platform_user_id)
            _revoke_link(chat_account)
    return conversations.delete_user_conversations(user_id)


def _delete_tokens(kind: str, platform: str, subject_id: str) -> None:
    # Unused tokens go too: they contain the same person's id and name.
    LinkToken.objects.filter(kind=kind, platform=platform, subject_id=subject_id).delete()


def erase_account_data(user_id: int, **_signal: object) -> int:
    """Receive `account_purging`: delete what else linking stores; return the number of rows, 0 when done."""
    removed, _ = LinkToken.objects.filter(used_by=user_id).delete()
    reservations, _ = CapReservation.objects.filter(owner=user_id).delete()
    keys = BotKey.objects.filter(created_by=user_id).update(created_by=None)
    return removed + reservations + keys


def purge_link_tokens() -> int:
    removed, _ = LinkToken.objects.filter(created_at__lt=Now() - TOKEN_RETENTION).delete()
    return removed
