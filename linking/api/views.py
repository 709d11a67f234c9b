"""A token seen and confirmed over REST; the two kinds have routes of their own."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse
from rest_framework.request import Request

from config.core.api.views import document_operation, respond_json
from linking import selectors
from linking.api.base import LinkingAPIView
from linking.api.parsing import NoBody, parse_body, parse_query
from linking.api.serializers import (
    Caps,
    Changes,
    Deleted,
    LinkListQuery,
    ServerLinkShown,
    ServerLinksPage,
    TokenShown,
    UserLinkShown,
    UserLinksPage,
    serialize_server_link,
    serialize_token,
    serialize_user_link,
    to_server_settings,
)
from linking.links import confirmation, tokens
from linking.links import services as links
from linking.selectors import LinkUsageView


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
