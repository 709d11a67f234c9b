"""Who is told of a refusal, and how often: a channel is not talked over (L8, L9, L25)."""

from __future__ import annotations

from django.conf import settings

from copilot.errors import Refused
from linking import pace
from linking.errors import MessageRefused

DAY_SECONDS = 24 * 3600


def may_tell(refused: Refused, platform: str, bot_account: str, container_id: str) -> bool:
    """Whether the channel is told now: once per reason and hour, and never what was not meant for the bot."""
    if isinstance(refused, MessageRefused) and not refused.aloud:
        return False
    place = f"{platform}:{bot_account}:{container_id}"
    return pace.first(f"refusal-{refused.code}", place, seconds=settings.LINK_NOTICE_SECONDS)


def may_greet(platform: str, bot_account: str, platform_user_id: str) -> bool:
    """Whether somebody who is not linked gets the greeting with a link now."""
    who = f"{platform}:{bot_account}:{platform_user_id}"
    return pace.first("greeting", who, seconds=settings.LINK_GREETING_SECONDS)


def may_prompt_server(platform: str, server_id: str) -> bool:
    """Whether an unlinked server is told once more that it is; so often a day."""
    limit = settings.LINK_PROMPTS_PER_SERVER_DAY
    return pace.hit("unlinked-server", f"{platform}:{server_id}", limit=limit, seconds=DAY_SECONDS) is None
