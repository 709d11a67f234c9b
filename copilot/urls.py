"""Paths of copilot's pages."""

from __future__ import annotations

from django.urls import path

from copilot import preference_views, views

urlpatterns = [
    path("", views.home, name="home"),
    path("chat/", views.chat, name="chat"),
    path("chat/start/", views.chat_start, name="chat_start"),
    path("chat/<uuid:session_id>/", views.chat_session, name="chat_session"),
    path("chat/<uuid:session_id>/send/", views.chat_send, name="chat_send"),
    path("settings/", preference_views.settings, name="settings"),
    path("settings/keys/", views.keys, name="api_keys"),
    path("settings/keys/<uuid:key_id>/revoke/", views.revoke_key, name="api_key_revoke"),
]
