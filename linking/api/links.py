"""A person's own links over REST (L7)."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse
from rest_framework.request import Request

from billing.rest import answer, operation
from linking import links, queries
from linking.api.shapes import (
    Changes,
    Deleted,
    Listed,
    ServerLinkShown,
    ServerLinksPage,
    UserLinksPage,
    server_link_shown,
    settings_of,
    user_link_shown,
)
from linking.bodies import body_of, query_of
from linking.doors import UserDoor
from linking.queries import LinkUsageView


class ServerLinksView(UserDoor):
    @operation("Your servers, newest first", answers={200: ServerLinksPage}, query=Listed)
    def get(self, request: Request) -> HttpResponse:
        wanted = query_of(request, Listed)
        page = queries.server_links(self.caller.pk, cursor=wanted.cursor, limit=wanted.limit)
        items = [server_link_shown(link) for link in page.items]
        return answer(ServerLinksPage(items=items, next_cursor=page.next_cursor))


class ServerLinkView(UserDoor):
    @operation("Change a server's settings", answers={200: ServerLinkShown}, body=Changes)
    def patch(self, request: Request, link_id: UUID) -> HttpResponse:
        changes = settings_of(body_of(request, Changes))
        return answer(server_link_shown(links.change_server(self.caller.pk, link_id, changes)))

    @operation("Disconnect a server", answers={200: Deleted})
    def delete(self, request: Request, link_id: UUID) -> HttpResponse:
        links.unlink_server(self.caller.pk, link_id)
        return answer(Deleted())


class ServerLinkUsageView(UserDoor):
    @operation("How much of its caps a server has used", answers={200: LinkUsageView})
    def get(self, request: Request, link_id: UUID) -> HttpResponse:
        return answer(queries.link_usage(self.caller.pk, link_id))


class UserLinksView(UserDoor):
    @operation("Your chat accounts, newest first", answers={200: UserLinksPage}, query=Listed)
    def get(self, request: Request) -> HttpResponse:
        wanted = query_of(request, Listed)
        page = queries.user_links(self.caller.pk, cursor=wanted.cursor, limit=wanted.limit)
        items = [user_link_shown(link) for link in page.items]
        return answer(UserLinksPage(items=items, next_cursor=page.next_cursor))


class UserLinkView(UserDoor):
    @operation("Disconnect a chat account", answers={200: Deleted})
    def delete(self, request: Request, link_id: UUID) -> HttpResponse:
        links.unlink_user(self.caller.pk, link_id)
        return answer(Deleted())
