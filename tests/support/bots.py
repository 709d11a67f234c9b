"""Create bots with a key, a client that uses it, and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.test import Client

from linking.conversations.services import BotAccount
from linking.links import bot_keys
from linking.models import PlatformLink, PlatformUserLink
from linking.models.bot_keys import BOT_KEY_SCOPES
from tests.support import factories
from tests.support.rest_clients import JSON

V1 = "/api/bot/v1"


@dataclass(frozen=True)
class Caller:
    """A client for a third-party bot."""

    bot: BotAccount
    token: str

    @property
    def client(self) -> Client:
        return Client(headers={"authorization": f"Bearer {self.token}"})

    def get(self, path: str, **headers: str):  # type: ignore[no-untyped-def]
        return self.client.get(f"{V1}/{path}", headers=headers)

    def post(self, path: str, body: object, **headers: str):  # type: ignore[no-untyped-def]
        return self.client.post(f"{V1}/{path}", body, content_type=JSON, headers=headers)

    def say(self, key: str, **changes: object):  # type: ignore[no-untyped-def]
        """Send a direct message, from Ada by default."""
        return self.post("turns", dm(**changes), **{"Idempotency-Key": key})


def caller(
    platform: str = "telegram",
    account: str = "bot-1",
    scopes: Sequence[str] = BOT_KEY_SCOPES,
    **fields: Any,
) -> Caller:
    made = bot_keys.create_bot_key(
        name="tests", platform=platform, bot_account=account, scopes=scopes, **fields
    )
    return Caller(BotAccount(platform=platform, bot_account=account), made.key)


def dm(**changes: object) -> dict[str, object]:
    return {"scope": "dm", "container_id": "dm-1", "platform_user_id": "ada-1", "text": "Hello"} | changes


def channel(**changes: object) -> dict[str, object]:
    place = {"scope": "server", "server_id": "guild", "container_id": "general"}
    return {**place, "platform_user_id": "bob-1", "display_name": "Bob", "text": "Hello"} | changes


def link_ada(
    platform: str = "telegram", user_id: str = "ada-1", bot_account: str = "bot-1"
) -> PlatformUserLink:
    return PlatformUserLink.objects.create(
        platform=platform, bot_account=bot_account, platform_user_id=user_id, user=factories.ada()
    )


def link_guild(platform: str = "telegram", bot_account: str = "bot-1", **settings: object) -> PlatformLink:
    made = PlatformLink.objects.create(
        platform=platform, bot_account=bot_account, server_id="guild", owner=factories.ada(), **settings
    )
    made.refresh_from_db()
    return made
