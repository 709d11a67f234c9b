"""What bots' bodies have in common: platform ids as they may be, and the place they speak of (L3, L12)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from copilot.errors import InvalidRequest
from linking.bodies import Body
from linking.conversations import Bot, Where
from linking.models import PLATFORM_ID, BotKey

PlatformId = Annotated[str, Field(pattern=PLATFORM_ID, max_length=64)]
NoThread = Annotated[str, Field(pattern=PLATFORM_ID.replace("{1,64}", "{0,64}"), max_length=64)]
Name = Annotated[str, Field(max_length=1000)]  # cut where it is stored


class Place(Body):
    """Where something is said; a server's place names its server."""

    platform: str | None = None  # if it is said, it must be the key's
    scope: Literal["server", "dm"]
    server_id: PlatformId | None = None
    container_id: PlatformId
    thread_id: NoThread = ""

    def where(self, key: BotKey) -> Where:
        if (self.scope == "server") != (self.server_id is not None):
            raise InvalidRequest("server_id: it goes with the scope server, and only with it.")
        return Where(
            platform=key.platform,
            bot_account=key.bot_account,
            scope=self.scope,
            container_id=self.container_id,
            thread_id=self.thread_id,
            server_id=self.server_id or "",
        )


class Who(Body):
    """Who of the platform does it."""

    platform_user_id: PlatformId


def bot_of(key: BotKey) -> Bot:
    return Bot(platform=key.platform, bot_account=key.bot_account)
