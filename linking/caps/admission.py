"""Decide whether a message in a linked server may start a turn, and what that turn may do.

The checks have one order, and the first failure decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django.conf import settings

from billing import errors
from billing.usage import limit_checks
from config.core import rate_limits
from copilot.chat.permissions import Permissions
from linking.caps.reservations import check_cap, release_reservation, reserve_cap
from linking.errors import MessageRefused
from linking.models import PlatformLink

CHANNEL_WINDOW_SECONDS = 600  # for LINK_CHANNEL_MESSAGES


@dataclass(frozen=True, kw_only=True)
class ServerMessage:
    """A message as the owner's rules see it. `container_id` is the channel, also for messages in its threads.

    `mentioned` is true for a mention, a reply or a command, and always for the REST API of bots.
    """

    run_id: str
    container_id: str
    platform_user_id: str
    role_ids: Collection[str] = ()
    mentioned: bool = True


def admit_message(link: PlatformLink, said: ServerMessage) -> None:
    """Reserve the message's part of the cap, or refuse it: the server's caps and its owner's limits must both allow it."""
    _check_link_rules(link, said)
    _check_channel_rate(link, said)
    reserve_cap(link.pk, said.run_id, said.container_id, said.platform_user_id)
    try:
        limit_checks.check_limits(link.owner_id)
    except errors.LimitReached as reached:
        release_reservation(said.run_id)
        raise MessageRefused("limit_reached") from reached


def check_message(link: PlatformLink, said: ServerMessage) -> None:
    """Refuse what `admit_message` would refuse now, before anything is fetched for it. Reserve nothing."""
    _check_link_rules(link, said)
    check_cap(link, said.platform_user_id)


def _check_link_rules(link: PlatformLink, said: ServerMessage) -> None:
    if link.state == PlatformLink.State.BOT_REMOVED:
        raise MessageRefused("bot_removed", is_announced=said.mentioned)
    if link.state == PlatformLink.State.PAUSED:
        raise MessageRefused("link_paused", is_announced=said.mentioned)
    if link.allowed_channels and said.container_id not in link.allowed_channels:
        raise MessageRefused("channel_not_allowed", is_announced=said.mentioned)
    if link.allowed_roles and not set(link.allowed_roles) & set(said.role_ids):
        raise MessageRefused("role_not_allowed", is_announced=said.mentioned)
    if link.require_mention and not said.mentioned:
        raise MessageRefused("mention_required", is_announced=False)


def _check_channel_rate(link: PlatformLink, said: ServerMessage) -> None:
    wait = rate_limits.count_in_sliding_window(
        "channel",
        f"{link.pk}:{said.container_id}",
        limit=settings.LINK_CHANNEL_MESSAGES,
        seconds=CHANNEL_WINDOW_SECONDS,
    )
    if wait is not None:
        raise MessageRefused("channel_rate_reached", retry_after_seconds=wait)


# --- Permissions of guests ---

# Tools that reach no further than the conversation: its messages and files, the time, questions to the speaker.
GUEST_TOOLS = frozenset(
    {"current_time", "ask_user", "todos_write", "read_file", "write_file", "list_files", "read_tool_result"}
)
# Tools that an owner may add. Memory, other sessions, agents, schedules and MCP servers belong to the account, and no
# server gets them. Calls that delete, send or cost something ask the owner first, every time.
OPTIONAL_TOOLS = frozenset(
    {"web_fetch", "web_search", "bash_exec", "python_exec", "delete_file", "share_file"}
)
_NETWORK_TOOLS = frozenset({"web_fetch", "web_search"})


def build_guest_permissions(tools: Iterable[str]) -> Permissions:
    """List every permission explicitly, so that a new one is closed to guests until it is opened here."""
    added = OPTIONAL_TOOLS & frozenset(tools)
    return Permissions(
        tools=GUEST_TOOLS | added,
        denied_tools=frozenset(),
        mcp_servers=frozenset(),
        agents=frozenset(),
        sub_sessions=False,
        schedules=False,
        network=bool(added & _NETWORK_TOOLS),
        memory=False,
        own_credentials=False,
        files="session",
    )
