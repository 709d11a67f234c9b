"""Bot API views for links: the key itself, linked servers and users, and the tokens that link new ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from django.conf import settings
from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import RequestBody
from config.core.api.views import document_operation, respond_json
from linking import selectors
from linking.api.serializers import MAX_REQUEST_BODY_BYTES, parse_body
from linking.bot_api.views import BotAPIView, DisplayName, OptionalPlatformId, PlatformId
from linking.links import tokens
from linking.links.tokens import NewToken, TokenRequest, TokenStatus
from linking.models import BotKey


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


class ServerTokenAsked(RequestBody):
    platform: str | None = None
    server_id: PlatformId
    server_name: DisplayName = ""
    requester_name: DisplayName = ""
    requester_is_admin: bool
    notify_container: Annotated[
        OptionalPlatformId, Field(description="The container to notify when the link is confirmed.")
    ] = ""


class UserTokenAsked(RequestBody):
    platform: str | None = None
    platform_user_id: PlatformId
    display_name: DisplayName = ""
    notify_container: OptionalPlatformId = ""


class BotServerTokensView(BotAPIView):
    scope = "links:write"

    @document_operation("Create a token to link a server", answers={201: NewToken}, body=ServerTokenAsked)
    def post(self, request: Request) -> HttpResponse:
        body = parse_body(request, ServerTokenAsked)
        self.check_platform(body.platform)
        token = tokens.create_server_token(
            _build_token_request(
                self.key,
                subject_id=body.server_id,
                subject_name=body.server_name,
                requester_name=body.requester_name,
                notify_container=body.notify_container,
            ),
            requester_is_admin=body.requester_is_admin,
        )
        return respond_json(token, 201)


class BotUserTokensView(BotAPIView):
    scope = "links:write"

    @document_operation("Create a token to link a chat account", answers={201: NewToken}, body=UserTokenAsked)
    def post(self, request: Request) -> HttpResponse:
        body = parse_body(request, UserTokenAsked)
        self.check_platform(body.platform)
        token = tokens.create_user_token(
            _build_token_request(
                self.key,
                subject_id=body.platform_user_id,
                subject_name=body.display_name,
                requester_name=body.display_name,
                notify_container=body.notify_container,
            )
        )
        return respond_json(token, 201)


class BotTokenStatusView(BotAPIView):
    scope = "links:write"

    @document_operation("Read the status of a token", answers={200: TokenStatus})
    def get(self, request: Request, token: str) -> HttpResponse:
        return respond_json(tokens.get_token_status(self.key.platform, self.key.bot_account, token))


def _build_token_request(
    key: BotKey, *, subject_id: str, subject_name: str, requester_name: str, notify_container: str
) -> TokenRequest:
    return TokenRequest(
        platform=key.platform,
        bot_account=key.bot_account,
        subject_id=subject_id,
        subject_name=subject_name,
        requester_name=requester_name,
        notify_container=notify_container,
        key=key,
    )
