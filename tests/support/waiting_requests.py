"""Requests that stay open until something happens."""

from __future__ import annotations

from copilot.models import Session, Turn


def list_waiting_requests(
    session: Session, turn: Turn
) -> dict[str, tuple[str, str, dict[str, object] | None]]:
    hello = [{"role": "user", "content": "Hello"}]
    part = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
    return {
        "stream": ("GET", f"/api/v1/sessions/{session.pk}/stream", None),
        "wait": ("GET", f"/api/v1/turns/{turn.pk}/wait?timeout=30", None),
        "completion": ("POST", "/v1/chat/completions", {"model": "small", "messages": hello, "stream": True}),
        "response": ("POST", "/v1/responses", {"model": "small", "input": "Hello", "stream": True}),
        "AI SDK": ("POST", "/api/ai/chat", {"id": "chat-1", "messages": [part]}),
    }
