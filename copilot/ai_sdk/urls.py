"""Paths under /api/ai/, which the AI SDK's chat transport calls."""

from __future__ import annotations

from django.urls import path, re_path

from copilot.ai_sdk.views import chat_stop_view, chat_stream_view, chat_view
from copilot.openai_compat.base import not_found_view

urlpatterns = [
    path("chat", chat_view),
    path("chat/<str:name>/stream", chat_stream_view),
    path("chat/<str:name>/stop", chat_stop_view),
    re_path(r"", not_found_view),
]
