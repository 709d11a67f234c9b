"""URLs of linking: pages and the REST API for people."""

from __future__ import annotations

from django.urls import include, path, register_converter

from linking.api.views import (
    LinkTokenConfirmServerView,
    LinkTokenConfirmUserView,
    LinkTokenView,
    ServerLinksView,
    ServerLinkUsageView,
    ServerLinkView,
    UserLinksView,
    UserLinkView,
)
from linking.web import connected_chats, link_confirmation


class LinkTokenConverter:
    """Match link tokens only, so that other strings are 404 without a database query."""

    regex = "[A-Za-z0-9_-]{1,64}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(LinkTokenConverter, "link_token")

TOKEN_PATH = "tokens/<link_token:token>"  # noqa: S105 - a place in a path
api_urlpatterns = [
    path(TOKEN_PATH, LinkTokenView.as_view()),
    path(f"{TOKEN_PATH}/confirm-server", LinkTokenConfirmServerView.as_view()),
    path(f"{TOKEN_PATH}/confirm-user", LinkTokenConfirmUserView.as_view()),
    path("server-links", ServerLinksView.as_view()),
    path("server-links/<uuid:link_id>", ServerLinkView.as_view()),
    path("server-links/<uuid:link_id>/usage", ServerLinkUsageView.as_view()),
    path("user-links", UserLinksView.as_view()),
    path("user-links/<uuid:link_id>", UserLinkView.as_view()),
]

urlpatterns = [
    path("api/v1/linking/", include(api_urlpatterns)),
    path("link/<link_token:token>", link_confirmation.show_link_token, name="link_claim"),
    path("link/<link_token:token>/qr.svg", link_confirmation.show_link_qr, name="link_qr"),
    path(
        "link/<link_token:token>/confirm-server", link_confirmation.confirm_server, name="link_confirm_server"
    ),
    path("link/<link_token:token>/confirm-user", link_confirmation.confirm_user, name="link_confirm_user"),
    path("link/<link_token:token>/cancel", link_confirmation.cancel_link_token, name="link_cancel"),
    path("settings/chats/", connected_chats.list_chats, name="connected_chats"),
    path("settings/chats/<slug:platform>/qr.svg", connected_chats.show_bot_qr, name="bot_qr"),
    path("settings/chats/servers/<uuid:link_id>/", connected_chats.change_server, name="server_link_change"),
    path(
        "settings/chats/servers/<uuid:link_id>/pause/", connected_chats.pause_server, name="server_link_pause"
    ),
    path(
        "settings/chats/servers/<uuid:link_id>/unlink/",
        connected_chats.unlink_server,
        name="server_link_unlink",
    ),
    path(
        "settings/chats/people/<uuid:link_id>/unlink/", connected_chats.unlink_user, name="user_link_unlink"
    ),
]
