"""Create conversations that fill a small context window."""

from __future__ import annotations

from copilot.providers.scripted import ScriptedCall, ScriptedText, ScriptedUsage
from copilot.realtime.payloads import Tokens
from tests.support import rest_clients

NEARLY_FULL = Tokens(input=85_000, output=100)


def fill_context(model, *, tokens=NEARLY_FULL, note="1"):
    model.will(ScriptedText("Looking."), ScriptedCall("fetch", {"note": note}), ScriptedUsage(tokens))


def request_compaction(user, session, **body):
    """Compact the conversation over REST."""
    path = f"/api/v1/sessions/{session.pk}/compact"
    return rest_clients.person(user).post(path, body, content_type=rest_clients.JSON)


WINDOW = 100_000
