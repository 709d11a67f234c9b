"""Views through which bots create link tokens and read their status."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import RequestBody
from config.core.api.views import document_operation, respond_json
from linking.api.serializers import parse_body
from linking.bot_api.serializers import DisplayName, OptionalPlatformId, PlatformId
from linking.bot_api.views import BotAPIView
from linking.links import tokens
from linking.links.tokens import NewToken, TokenRequest, TokenStatus
from linking.models import BotKey


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
