"""A token seen and confirmed over REST; the two kinds have routes of their own (L5, L7)."""

from __future__ import annotations

from django.http import HttpResponse
from rest_framework.request import Request

from billing.rest import answer, operation
from linking import links, queries
from linking.api.shapes import (
    Caps,
    ServerLinkShown,
    TokenShown,
    UserLinkShown,
    server_link_shown,
    settings_of,
    token_shown,
    user_link_shown,
)
from linking.bodies import NoBody, body_of
from linking.doors import UserDoor


class LinkTokenView(UserDoor):
    @operation("What a link token is for", answers={200: TokenShown})
    def get(self, request: Request, token: str) -> HttpResponse:
        return answer(token_shown(queries.pending_token(links.digest(token))))


class LinkTokenConfirmServerView(UserDoor):
    @operation(
        "Connect a server: everyone there may chat at your cost", answers={200: ServerLinkShown}, body=Caps
    )
    def post(self, request: Request, token: str) -> HttpResponse:
        chosen = settings_of(body_of(request, Caps))
        return answer(server_link_shown(links.confirm_server(self.caller, token, chosen)))


class LinkTokenConfirmUserView(UserDoor):
    @operation("Connect a chat account: it acts as you", answers={200: UserLinkShown}, body=NoBody)
    def post(self, request: Request, token: str) -> HttpResponse:
        body_of(request, NoBody)
        return answer(user_link_shown(links.confirm_user(self.caller, token)))
