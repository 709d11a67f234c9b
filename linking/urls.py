"""Paths of linking: pages for people, their REST, and bots' REST."""

from __future__ import annotations

from django.urls import include, path, register_converter

from linking.api.links import (
    ServerLinksView,
    ServerLinkUsageView,
    ServerLinkView,
    UserLinksView,
    UserLinkView,
)
from linking.api.tokens import LinkTokenConfirmServerView, LinkTokenConfirmUserView, LinkTokenView
from linking.converters import LinkTokenConverter
from linking.views import chats, claims

register_converter(LinkTokenConverter, "link_token")

TOKEN = "tokens/<link_token:token>"  # noqa: S105 - a place in a path
api = [
    path(TOKEN, LinkTokenView.as_view()),
    path(f"{TOKEN}/confirm-server", LinkTokenConfirmServerView.as_view()),
    path(f"{TOKEN}/confirm-user", LinkTokenConfirmUserView.as_view()),
    path("server-links", ServerLinksView.as_view()),
    path("server-links/<uuid:link_id>", ServerLinkView.as_view()),
    path("server-links/<uuid:link_id>/usage", ServerLinkUsageView.as_view()),
    path("user-links", UserLinksView.as_view()),
    path("user-links/<uuid:link_id>", UserLinkView.as_view()),
]

urlpatterns = [
    path("api/v1/linking/", include(api)),
    path("link/<link_token:token>", claims.claim, name="link_claim"),
    path("link/<link_token:token>/qr.svg", claims.qr, name="link_qr"),
    path("link/<link_token:token>/confirm-server", claims.confirm_server, name="link_confirm_server"),
    path("link/<link_token:token>/confirm-user", claims.confirm_user, name="link_confirm_user"),
    path("link/<link_token:token>/cancel", claims.cancel, name="link_cancel"),
    path("settings/chats/", chats.chats, name="connected_chats"),
    path("settings/chats/<slug:platform>/qr.svg", chats.qr, name="bot_qr"),
    path("settings/chats/servers/<uuid:link_id>/", chats.change_server, name="server_link_change"),
    path("settings/chats/servers/<uuid:link_id>/pause/", chats.pause_server, name="server_link_pause"),
    path("settings/chats/servers/<uuid:link_id>/unlink/", chats.unlink_server, name="server_link_unlink"),
    path("settings/chats/people/<uuid:link_id>/unlink/", chats.unlink_user, name="user_link_unlink"),
]
