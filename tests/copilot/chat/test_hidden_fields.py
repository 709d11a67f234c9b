"""What clients never see: the server's own context, and money (A15.5, A19.8)."""

from __future__ import annotations

import json

import msgspec
import pytest

from copilot.chat import selectors as chat_selectors
from copilot.chat import stop
from copilot.memories import services as memories
from copilot.models import ModelCall
from copilot.providers.scripted import ScriptedCall, ScriptedText, ScriptedUsage
from copilot.realtime.payloads import Tokens
from tests.support import factories
from tests.support.rest_clients import JSON, V1, person, program
from tests.support.turn_engine import cue, ended, log_of, start, until

SERVERS = ("env_context", "memory_context", "remembered-tea", "page-of-ada", "system_note")


@pytest.fixture
def session(rig):
    return factories.session()


def told_to_clients(session) -> str:
    """All that the log, the page and REST say of it."""
    reader = program(factories.ada(), "read")
    paths = [f"{V1}/sessions", f"{V1}/sessions/{session.pk}", f"{V1}/sessions/{session.pk}/messages"]
    paths += [f"{V1}/turns/{turn}" for turn in session.turns.values_list("pk", flat=True)]
    answers = [reader.get(path) for path in paths]
    assert {answer.status_code for answer in answers} == {200}
    page = person(factories.ada()).get(f"/chat/{session.pk}/")
    snapshot = msgspec.json.encode(chat_selectors.build_snapshot(session.pk)[0]).decode()
    log = [one.payload for one in log_of(session.pk)]
    return "\n".join(
        [*(answer.content.decode() for answer in answers), page.content.decode(), snapshot, *map(str, log)]
    )


def test_no_client_sees_what_the_server_put_before_a_message(session, model):
    """A15.5: neither in rows, nor in events, nor on the page; the model does"""
    memories.add_memory(session.owner_id, "remembered-tea")
    page = {"url": "https://a.example/page-of-ada", "text": "page-of-ada"}
    path = f"{V1}/sessions/{session.pk}/messages"
    model.will(ScriptedText("Ok."), ScriptedCall("todos_write", {"items": []}))
    sent = program(factories.ada()).post(path, {"text": "Hello", "context": page}, content_type=JSON)
    ended(sent.json()["turn_id"])
    assert all(word in repr(model.requests[0]) for word in SERVERS[:4])
    seen = told_to_clients(session)
    assert "Hello" in seen
    assert [word for word in SERVERS if word in seen] == []


def keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        return {*value, *(key for inner in value.values() for key in keys_of(inner))}
    return {key for inner in value for key in keys_of(inner)} if isinstance(value, list) else set()


def test_no_viewer_who_is_not_staff_sees_a_cost(session, model):
    """A19.c2, A19.8: no key of money in any event or API body"""
    model.will(ScriptedText("Dear."), ScriptedUsage(Tokens(input=1_000, output=500)))
    turn = ended(start(session))
    until(lambda: ModelCall.objects.filter(turn=turn, ended_at__isnull=False).exists())
    reader = program(factories.ada(), "read")
    paths = (
        "sessions",
        f"sessions/{session.pk}",
        f"sessions/{session.pk}/messages",
        f"turns/{turn.pk}",
        "models",
    )
    bodies = [reader.get(f"{V1}/{path}").json() for path in (*paths, f"turns/{turn.pk}/wait")]
    bodies += [json.loads(one.payload) for one in log_of(session.pk)]
    named = keys_of(bodies)
    allowed = {
        "auto_approve",
        "cap_microdollars",
        "estimate_microdollars",
        "remaining_microdollars",
    }  # A11.11
    assert {"tokens", "kind", "items"} <= named
    assert {key for key in named - allowed if "cost" in key or "dollar" in key or "price" in key} == set()


def test_a_call_that_was_stopped_is_recorded_with_what_was_announced(session, model):
    """A19.c2, A19.5: Anthropic tells the input with the first event"""
    model.will(ScriptedUsage(Tokens(input=123)), ScriptedText("Half"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    stop.stop_session(session.owner_id, session.pk)
    ended(turn_id)
    until(lambda: ModelCall.objects.filter(turn=turn_id, ended_at__isnull=False).exists())
    call = ModelCall.objects.get(turn=turn_id)
    assert (call.aborted, call.input_tokens) == (True, 123)
    assert call.output_tokens > 0
