"""URLs of the bot API, below /api/bot/v1/."""

from __future__ import annotations

from django.urls import path, re_path

from linking.bot_api.deliveries import (
    BotDeliveriesView,
    BotDeliveryEndpointView,
    BotRedeliverView,
    BotRotateSecretView,
)
from linking.bot_api.events import BotSessionEventsView, BotTurnEventsView
from linking.bot_api.files import BotFilesView, BotFileView
from linking.bot_api.links import (
    BotMeView,
    BotServersResolveView,
    BotServerTokensView,
    BotTokenStatusView,
    BotUsersResolveView,
    BotUserTokensView,
)
from linking.bot_api.turns import (
    BotAnswerView,
    BotDecideView,
    BotNewConversationView,
    BotStopView,
    BotTurnsView,
    BotTurnView,
)
from linking.bot_api.views import BotNotFoundView

urlpatterns = [
    path("me", BotMeView.as_view()),
    path("servers/resolve", BotServersResolveView.as_view()),
    path("users/resolve", BotUsersResolveView.as_view()),
    path("server-tokens", BotServerTokensView.as_view()),
    path("user-tokens", BotUserTokensView.as_view()),
    re_path(r"^tokens/(?P<token>[A-Za-z0-9_-]{1,64})/status$", BotTokenStatusView.as_view()),
    path("turns", BotTurnsView.as_view()),
    path("turns/<uuid:turn_id>", BotTurnView.as_view()),
    path("turns/<uuid:turn_id>/events", BotTurnEventsView.as_view()),
    path("turns/<uuid:turn_id>/stop", BotStopView.as_view()),
    path("sessions/<uuid:session_id>/events", BotSessionEventsView.as_view()),
    path("conversations/new", BotNewConversationView.as_view()),
    path("approvals/<uuid:approval_id>/decide", BotDecideView.as_view()),
    path("questions/<uuid:question_id>/answer", BotAnswerView.as_view()),
    path("files", BotFilesView.as_view()),
    path("files/<uuid:file_id>", BotFileView.as_view()),
    path("delivery-endpoint", BotDeliveryEndpointView.as_view()),
    path("delivery-endpoint/rotate-secret", BotRotateSecretView.as_view()),
    path("deliveries", BotDeliveriesView.as_view()),
    path("deliveries/<uuid:delivery_id>/redeliver", BotRedeliverView.as_view()),
    re_path(r"", BotNotFoundView.as_view()),
]
