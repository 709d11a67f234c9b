"""Create links, tokens, bots with keys, and conversations."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from copilot.models import Session
from linking.links import bot_keys, tokens
from linking.links.tokens import NewToken, TokenRequest
from linking.models import BotKey, PlatformConversation, PlatformLink, PlatformUserLink
from linking.models.bot_keys import BOT_KEY_SCOPES
from tests.support import factories

BOT = "bot-1"
SERVER = "server-1"
PERSON = "person-1"


def request(
    subject_id: str, *, platform: str = "discord", key: BotKey | None = None, **said: Any
) -> TokenRequest:
    return TokenRequest(platform=platform, bot_account=BOT, subject_id=subject_id, key=key, **said)


def server_token(server_id: str = SERVER, *, platform: str = "discord", **said: Any) -> NewToken:
    return tokens.create_server_token(
        request(
            server_id, platform=platform, **{"subject_name": "The Quay", "requester_name": "Eve", **said}
        ),
        requester_is_admin=True,
    )


def user_token(platform_user_id: str = PERSON, *, platform: str = "telegram", **said: Any) -> NewToken:
    return tokens.create_user_token(
        request(platform_user_id, platform=platform, **{"subject_name": "Ada L.", **said})
    )


def server_link(owner: User | None = None, *, server_id: str = SERVER, **fields: object) -> PlatformLink:
    made = PlatformLink.objects.create(
        **{
            "platform": "discord",
            "bot_account": BOT,
            "server_id": server_id,
            "server_name": "The Quay",
            "owner": owner or factories.ada(),
        }
        | fields
    )
    made.refresh_from_db()
    return made


def user_link(
    user: User | None = None, *, person: str = PERSON, platform: str = "telegram", bot_account: str = BOT
) -> PlatformUserLink:
    made = PlatformUserLink.objects.create(
        platform=platform,
        bot_account=bot_account,
        platform_user_id=person,
        display_name="Ada L.",
        user=user or factories.ada(),
    )
    made.refresh_from_db()
    return made


def conversation(
    link: PlatformLink | PlatformUserLink, *, container: str = "channel-1", session: Session | None = None
) -> PlatformConversation:
    server, person = (link, None) if isinstance(link, PlatformLink) else (None, link)
    owner = link.owner if isinstance(link, PlatformLink) else link.user
    return PlatformConversation.objects.create(
        platform=link.platform,
        bot_account=link.bot_account,
        container_id=container,
        scope="server" if server else "dm",
        link=server,
        user_link=person,
        session=session or factories.session(owner),
    )


def bot_key(platform: str = "discord", *scopes: str, **fields: Any) -> bot_keys.NewBotKey:
    given: dict[str, Any] = {"name": "A bot", "bot_account": BOT} | fields
    return bot_keys.create_bot_key(platform=platform, scopes=scopes or BOT_KEY_SCOPES, **given)


def bot(platform: str = "discord", *scopes: str, **fields: Any) -> Client:
    """A client that calls with the bot's key."""
    return Client(headers={"authorization": f"Bearer {bot_key(platform, *scopes, **fields).key}"})
