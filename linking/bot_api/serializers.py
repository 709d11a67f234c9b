"""Fields and bodies that the views of the bot API share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config.core.api.parsing import RequestBody
from config.core.errors import InvalidRequest
from linking.conversations.services import BotAccount, ConversationPlace
from linking.models import PLATFORM_ID_PATTERN, BotKey

PlatformId = Annotated[str, Field(pattern=PLATFORM_ID_PATTERN, max_length=64)]
OptionalPlatformId = Annotated[
    str, Field(pattern=PLATFORM_ID_PATTERN.replace("{1,64}", "{0,64}"), max_length=64)
]
DisplayName = Annotated[str, Field(max_length=1000)]  # truncated when stored


class PlaceBody(RequestBody):
    """A place in a chat. `server_id` is required with the scope `server`."""

    platform: str | None = None  # if present, it must be the key's
    scope: Literal["server", "dm"]
    server_id: PlatformId | None = None
    container_id: PlatformId
    thread_id: OptionalPlatformId = ""

    def to_conversation_place(self, key: BotKey) -> ConversationPlace:
        if (self.scope == "server") != (self.server_id is not None):
            raise InvalidRequest("server_id: required with the scope server, and allowed only there.")
        return ConversationPlace(
            platform=key.platform,
            bot_account=key.bot_account,
            scope=self.scope,
            container_id=self.container_id,
            thread_id=self.thread_id,
            server_id=self.server_id or "",
        )


class SpeakerBody(RequestBody):
    """The platform user who acts."""

    platform_user_id: PlatformId


def to_bot_account(key: BotKey) -> BotAccount:
    return BotAccount(platform=key.platform, bot_account=key.bot_account)
