"""Paths under /v1/: what the clients of OpenAI call with their base_url set to it (E4.2)."""

from __future__ import annotations

from django.urls import path, re_path

from copilot.compat.chat import completions
from copilot.compat.doors import nowhere
from copilot.compat.models import model, models
from copilot.compat.responses import response, responses

urlpatterns = [
    path("models", models),
    path("models/<path:model>", model),
    path("chat/completions", completions),
    path("responses", responses),
    path("responses/<str:response_id>", response),
    re_path(r"", nowhere),
]
