"""Views that describe a bot's key and resolve linked servers and people."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.http import HttpResponse
from rest_framework.request import Request

from config.core.api.parsing import RequestBody
from config.core.api.views import document_operation, respond_json
from linking import selectors
from linking.api.serializers import MAX_REQUEST_BODY_BYTES, parse_body
from linking.bot_api.serializers import PlatformId
from linking.bot_api.views import BotAPIView


@dataclass(frozen=True, kw_only=True)
class BotLimits:
    calls_per_minute: int
    open_streams: int
    body_bytes: int


@dataclass(frozen=True, kw_only=True)
class BotShown:
    name: str
    platform: str
    bot_account: str
    scopes: list[str]
    limits: BotLimits


class BotMeView(BotAPIView):
    @document_operation("Describe this key", answers={200: BotShown})
    def get(self, request: Request) -> HttpResponse:
        key = self.key
        limits = BotLimits(
            calls_per_minute=key.rate_per_minute,
            open_streams=settings.BOT_KEY_STREAMS,
            body_bytes=MAX_REQUEST_BODY_BYTES,
        )
        return respond_json(
            BotShown(
                name=key.name,
                platform=key.platform,
                bot_account=key.bot_account,
                scopes=list(key.scopes),
                limits=limits,
            )
        )


class ServerAsked(RequestBody):
    platform: str | None = None
    server_id: PlatformId


class UserAsked(RequestBody):
    platform: str | None = None
    platform_user_id: PlatformId


@dataclass(frozen=True, kw_only=True)
class ServerResolved:
    """The link of a server; it does not say whose account it is."""

    linked: bool
    link_id: str | None = None
    state: str | None = None
    require_mention: bool | None = None
    allowed_channels: list[str] | None = None
    allowed_roles: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class UserResolved:
    linked: bool
    link_id: str | None = None


class BotServersResolveView(BotAPIView):
    scope = "links:read"

    @document_operation(
        "Look up the link of a server with this bot", answers={200: ServerResolved}, body=ServerAsked
    )
    def post(self, request: Request) -> HttpResponse:
        body = parse_body(request, ServerAsked)
        self.check_platform(body.platform)
        link = selectors.find_server_link(self.key.platform, self.key.bot_account, body.server_id)
        if link is None:
            return respond_json(ServerResolved(linked=False))
        return respond_json(
            ServerResolved(
                linked=True,
                link_id=str(link.pk),
                state=link.state,
                require_mention=link.require_mention,
                allowed_channels=list(link.allowed_channels),
                allowed_roles=list(link.allowed_roles),
            )
        )


class BotUsersResolveView(BotAPIView):
    scope = "links:read"

    @document_operation(
        "Look up the link of a chat account with this bot", answers={200: UserResolved}, body=UserAsked
    )
    def post(self, request: Request) -> HttpResponse:
        body = parse_body(request, UserAsked)
        self.check_platform(body.platform)
        link = selectors.find_user_link(self.key.platform, self.key.bot_account, body.platform_user_id)
        return respond_json(UserResolved(linked=link is not None, link_id=str(link.pk) if link else None))
