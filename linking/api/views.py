"""REST views of link tokens and links, for their owners."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from config.core.api.parsing import parse_query
from config.core.api.views import UserApiView, document_operation, respond_json
from linking import selectors
from linking.api.serializers import (
    Caps,
    Changes,
    Deleted,
    LinkListQuery,
    NoBody,
    ServerLinkShown,
    ServerLinksPage,
    TokenShown,
    UserLinkShown,
    UserLinksPage,
    parse_body,
    serialize_server_link,
    serialize_token,
    serialize_user_link,
    to_server_settings,
)
from linking.bot_api.views import BOT_KEY_PREFIX, has_login_session, read_bearer_token
from linking.errors import AmbiguousCredentials
from linking.links import confirmation, tokens
from linking.links import services as links
from linking.selectors import LinkUsageView


class LinkingAPIView(UserApiView):
    """Accept a login session or the API key of a person, but no bot key."""

    http_method_names = ["get", "head", "post", "patch", "delete"]
    write_scopes = ("manage",)

    def get_authenticators(self) -> list[BaseAuthentication]:
        return [BotKeyConflictCheck(), *super().get_authenticators()]


class BotKeyConflictCheck(BaseAuthentication):
    """Refuse a bot key together with a login session, because it is unclear who asks."""

    def authenticate(self, request: Request) -> None:
        if read_bearer_token(request).startswith(BOT_KEY_PREFIX) and has_login_session(request):
            raise AmbiguousCredentials


class BotKeyConflictScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Keep the check out of the OpenAPI document: it authenticates no one."""

    target_class = "linking.api.views.BotKeyConflictCheck"
    name: list[str] = []

    def get_security_requirement(self, auto_schema: object) -> list[dict[str, list[object]]]:
        return []

    def get_security_definition(self, auto_schema: object) -> list[dict[str, str]]:
        return []


class LinkTokenView(LinkingAPIView):
    @document_operation("What a link token is for", answers={200: TokenShown})
    def get(self, request: Request, token: str) -> HttpResponse:
        return respond_json(serialize_token(selectors.get_pending_token(tokens.hash_token(token))))


class LinkTokenConfirmServerView(LinkingAPIView):
    @document_operation(
        "Connect a server: everyone there may chat at your cost", answers={200: ServerLinkShown}, body=Caps
    )
    def post(self, request: Request, token: str) -> HttpResponse:
        chosen = to_server_settings(parse_body(request, Caps))
        return respond_json(
            serialize_server_link(confirmation.confirm_server_link(self.caller, token, chosen))
        )


class LinkTokenConfirmUserView(LinkingAPIView):
    @document_operation("Connect a chat account: it acts as you", answers={200: UserLinkShown}, body=NoBody)
    def post(self, request: Request, token: str) -> HttpResponse:
        parse_body(request, NoBody)
        return respond_json(serialize_user_link(confirmation.confirm_user_link(self.caller, token)))


class ServerLinksView(LinkingAPIView):
    @document_operation("Your servers, newest first", answers={200: ServerLinksPage}, query=LinkListQuery)
    def get(self, request: Request) -> HttpResponse:
        wanted = parse_query(request, LinkListQuery)
        page = selectors.list_server_links(self.caller.pk, cursor=wanted.cursor, limit=wanted.limit)
        items = [serialize_server_link(link) for link in page.items]
        return respond_json(ServerLinksPage(items=items, next_cursor=page.next_cursor))


class ServerLinkView(LinkingAPIView):
    @document_operation("Change a server's settings", answers={200: ServerLinkShown}, body=Changes)
    def patch(self, request: Request, link_id: UUID) -> HttpResponse:
        changes = to_server_settings(parse_body(request, Changes))
        return respond_json(serialize_server_link(links.update_server_link(self.caller.pk, link_id, changes)))

    @document_operation("Disconnect a server", answers={200: Deleted})
    def delete(self, request: Request, link_id: UUID) -> HttpResponse:
        links.revoke_server_link(self.caller.pk, link_id)
        return respond_json(Deleted())


class ServerLinkUsageView(LinkingAPIView):
    @document_operation("How much of its caps a server has used", answers={200: LinkUsageView})
    def get(self, request: Request, link_id: UUID) -> HttpResponse:
        return respond_json(selectors.get_link_usage(self.caller.pk, link_id))


class UserLinksView(LinkingAPIView):
    @document_operation("Your chat accounts, newest first", answers={200: UserLinksPage}, query=LinkListQuery)
    def get(self, request: Request) -> HttpResponse:
        wanted = parse_query(request, LinkListQuery)
        page = selectors.list_user_links(self.caller.pk, cursor=wanted.cursor, limit=wanted.limit)
        items = [serialize_user_link(link) for link in page.items]
        return respond_json(UserLinksPage(items=items, next_cursor=page.next_cursor))


class UserLinkView(LinkingAPIView):
    @document_operation("Disconnect a chat account", answers={200: Deleted})
    def delete(self, request: Request, link_id: UUID) -> HttpResponse:
        links.revoke_user_link(self.caller.pk, link_id)
        return respond_json(Deleted())
