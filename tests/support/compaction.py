"""Create conversations that fill a small context window."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User

from copilot.models import Session
from copilot.providers.scripted import ScriptedCall, ScriptedText, ScriptedUsage
from copilot.realtime.payloads import Tokens
from tests.support import rest_clients
from tests.support.turn_engine import Model

NEARLY_FULL = Tokens(input=85_000, output=100)


def fill_context(model: Model, *, tokens: Tokens = NEARLY_FULL, note: str = "1") -> None:
    model.will(ScriptedText("Looking."), ScriptedCall("fetch", {"note": note}), ScriptedUsage(tokens))


def request_compaction(user: User, session: Session, **body: object) -> Any:
    """Compact the conversation over REST."""
    path = f"/api/v1/sessions/{session.pk}/compact"
    return rest_clients.person(user).post(path, body, content_type=rest_clients.JSON)


WINDOW = 100_000
