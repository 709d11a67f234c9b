"""A bot asks for a link, and how its token stands (L4, L11)."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, operation
from linking import links
from linking.bodies import Body, body_of
from linking.bot_api.places import Name, NoThread, PlatformId
from linking.doors import BotDoor
from linking.links import NewToken, TokenRequest, TokenStatus
from linking.models import BotKey


class ServerTokenAsked(Body):
    platform: str | None = None
    server_id: PlatformId
    server_name: Name = ""
    requester_name: Name = ""
    requester_is_admin: bool
    notify_container: Annotated[NoThread, Field(description="Where to say that it was confirmed.")] = ""


class UserTokenAsked(Body):
    platform: str | None = None
    platform_user_id: PlatformId
    display_name: Name = ""
    notify_container: NoThread = ""


class BotServerTokensView(BotDoor):
    scope = "links:write"

    @operation("Ask for a server's link", answers={201: NewToken}, body=ServerTokenAsked)
    def post(self, request: Request) -> HttpResponse:
        asked = body_of(request, ServerTokenAsked)
        self.check_platform(asked.platform)
        made = links.create_server_token(
            _request(
                self.key,
                subject_id=asked.server_id,
                subject_name=asked.server_name,
                requester_name=asked.requester_name,
                notify_container=asked.notify_container,
            ),
            requester_is_admin=asked.requester_is_admin,
        )
        return answer(made, 201)


class BotUserTokensView(BotDoor):
    scope = "links:write"

    @operation("Ask for a person's link", answers={201: NewToken}, body=UserTokenAsked)
    def post(self, request: Request) -> HttpResponse:
        asked = body_of(request, UserTokenAsked)
        self.check_platform(asked.platform)
        made = links.create_user_token(
            _request(
                self.key,
                subject_id=asked.platform_user_id,
                subject_name=asked.display_name,
                requester_name=asked.display_name,
                notify_container=asked.notify_container,
            )
        )
        return answer(made, 201)


class BotTokenStatusView(BotDoor):
    scope = "links:write"

    @operation("How a token stands", answers={200: TokenStatus})
    def get(self, request: Request, token: str) -> HttpResponse:
        return answer(links.token_status(self.key.platform, self.key.bot_account, token))


def _request(
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
