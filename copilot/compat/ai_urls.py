"""Paths under /api/ai/: what the AI SDK's chat transport calls (E4.1)."""

from __future__ import annotations

from django.urls import path, re_path

from copilot.compat.ai_chat import chat, stream
from copilot.compat.doors import nowhere

urlpatterns = [
    path("chat", chat),
    path("chat/<str:name>/stream", stream),
    re_path(r"", nowhere),
]
