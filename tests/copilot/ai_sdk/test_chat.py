"""The AI SDK's chat endpoint over a real socket: sent, followed, resumed, replayed (E4.1)."""

from __future__ import annotations

import json

import httpx
import pytest

from copilot.accounts import api_keys
from copilot.chat import selectors as chat_selectors
from copilot.models import Turn
from copilot.providers.scripted import ScriptedCall, ScriptedFailure, ScriptedReasoning, ScriptedText
from tests.support import factories
from tests.support.asgi_server import served
from tests.support.turn_engine import Errand, add_tools, cue, status, until
from tests.support.ui_messages import assert_well_formed_parts


@pytest.fixture(scope="module")
def url():
    with served() as site:
        yield f"{site}/api/ai/chat"


@pytest.fixture
def ada(rig):
    return factories.ada()


@pytest.fixture
def client(ada):
    with httpx.Client(
        headers={"Authorization": f"Bearer {api_keys.create_api_key(ada).token}"}, timeout=30
    ) as made:
        yield made


def said(text, **fields):
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": "chat-1", "trigger": "submit-message", "messages": [message], **fields}


def parts_of(response):
    """All parts of a stream that was read to its end."""
    assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
    *frames, done = [line.removeprefix("data: ") for line in response.read().decode().split("\n\n") if line]
    assert done == "[DONE]"
    return [json.loads(frame) for frame in frames]


def text_of(parts):
    return "".join(part["delta"] for part in parts if part["type"] == "text-delta")


def test_a_turn_is_streamed_in_parts_and_the_chat_continues_under_its_id(ada, client, url, model):
    """E4.1"""
    model.will(ScriptedReasoning("Hm."), ScriptedText("Looking."), ScriptedCall("current_time", call_id="c1"))
    model.will(ScriptedText("It is noon.", size=3))
    parts = parts_of(client.post(url, json=said("What time is it?")))
    assert_well_formed_parts(parts)
    kinds = list(dict.fromkeys(part["type"] for part in parts))
    assert kinds == [
        "start",
        "start-step",
        "reasoning-start",
        "reasoning-delta",
        "reasoning-end",
        "text-start",
        "text-delta",
        "text-end",
        "tool-input-start",
        "tool-input-available",
        "tool-output-available",
        "finish-step",
        "finish",
    ]
    assert text_of(parts) == "Looking.It is noon."
    parts_of(client.post(url, json=said("Thanks.")))
    assert "What time is it?" in model.said_to(-1)
    assert len(chat_selectors.list_sessions_page(ada.pk).items) == 1


def test_a_turn_in_flight_is_resumed_from_its_beginning_and_nothing_is_when_idle(ada, client, url, model):
    """E4.1"""
    assert client.get(f"{url}/chat-1/stream").status_code == 204
    model.will(ScriptedText("Once upon"), cue(1), ScriptedText(" a time."))
    with client.stream("POST", url, json=said("Tell me.")) as first:
        next(first.iter_bytes())
        model.reaches(1)
    with client.stream("GET", f"{url}/chat-1/stream") as resumed:
        model.give(1)
        parts = parts_of(resumed)
    assert_well_formed_parts(parts)
    assert (text_of(parts), parts[-1]) == ("Once upon a time.", {"type": "finish"})
    until(lambda: status(Turn.objects.get().pk) == "succeeded")
    assert client.get(f"{url}/chat-1/stream").status_code == 204


def test_an_answer_is_given_again_and_an_older_chat_is_known_by_its_id(ada, client, url, model):
    """E4.1"""
    session = factories.session(ada)
    parts_of(client.post(url, json=said("Name a boat.", id=str(session.pk))))
    model.will(ScriptedText("Argo."))
    again = parts_of(
        client.post(url, json=said("Name a boat.", id=str(session.pk), trigger="regenerate-message"))
    )
    assert text_of(again) == "Argo."
    snapshot, _ = chat_selectors.build_snapshot(session.pk)
    assert [row.content for row in snapshot.messages] == ["Name a boat.", "Argo."]


def test_each_way_to_end_has_its_part(ada, client, url, model, monkeypatch):
    """E4.1, A31.4"""
    model.will(ScriptedFailure("bad_request"))
    failed = parts_of(client.post(url, json=said("Hello")))
    assert (failed[-1]["type"], "Request rejected" in failed[-1]["errorText"]) == ("error", True)
    add_tools(monkeypatch, Errand("pay", approval="ask"))
    model.will(ScriptedText("I will pay."), ScriptedCall("pay"))
    paused = parts_of(client.post(url, json=said("Pay.", id="chat-2")))
    asked = next(part for part in paused if part["type"] == "data-approvals")
    assert (asked["data"]["items"][0]["tool"], "/chat/" in asked["data"]["link"]) == ("pay", True)
    assert paused[-1] == {"type": "finish"}
    assert client.get(f"{url}/chat-2/stream").status_code == 204


def test_what_cannot_be_taken_is_refused_before_anything_streams(ada, client, url):
    """E4.1"""
    file = {"id": "m", "role": "user", "parts": [{"type": "file", "mediaType": "image/png", "url": "data:,"}]}
    odd = [{}, said(""), said("x", messages=[file]), said("x", trigger="other")]
    for body in odd:
        assert client.post(url, json=body).status_code == 400, body
    assert client.post(url, json=said("x"), headers={"Authorization": "Bearer no"}).status_code == 401
    assert client.get(url).status_code == 405


def test_a_chat_is_stopped_by_its_name_and_by_its_owner_alone(ada, client, url, model):
    """X1.5: closing the stream alone leaves the turn to be resumed"""
    model.will(ScriptedText("Once upon"), cue(1), ScriptedText(" a time."))
    with client.stream("POST", url, json=said("Tell me a story.")) as response:
        next(response.iter_lines())
        model.reaches(1)
    turn = Turn.objects.get()
    assert status(turn.pk) == "running"
    bob = {"Authorization": f"Bearer {api_keys.create_api_key(factories.bob()).token}"}
    assert client.post(f"{url}/chat-1/stop", headers=bob).status_code == 404
    assert client.post(f"{url}/chat-1/stop").status_code == 204
    until(lambda: status(turn.pk) == "cancelled")
    assert client.post(f"{url}/unknown/stop").status_code == 404
