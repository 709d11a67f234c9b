"""Paths under /v1/, which OpenAI's clients call with this as their base_url."""

from __future__ import annotations

from django.urls import path, re_path

from copilot.openai_compat.base import model_view, models_view, not_found_view
from copilot.openai_compat.chat_completions import chat_completions_view
from copilot.openai_compat.responses import (
    response_cancel_view,
    response_input_items_view,
    response_view,
    responses_view,
)

urlpatterns = [
    path("models", models_view),
    path("models/<path:model>", model_view),
    path("chat/completions", chat_completions_view),
    path("responses", responses_view),
    path("responses/<str:response_id>", response_view),
    path("responses/<str:response_id>/cancel", response_cancel_view),
    path("responses/<str:response_id>/input_items", response_input_items_view),
    re_path(r"", not_found_view),
]
