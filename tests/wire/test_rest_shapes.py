"""The shapes of REST that clients rely on (E3). Adding a field is free; anything else is a new version."""

from __future__ import annotations

import pytest
from dirty_equals import IsInt, IsList, IsPositiveInt, IsStr

from copilot.accounts import api_keys
from tests.support import factories
from tests.support.rest_clients import JSON, V1, opened, person, program

CURSOR = IsStr(regex=r"\d+-\d+")
TIME = IsStr(regex=r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
ID = IsStr(regex=r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.mark.django_db
def test_sessions():
    client = program(factories.ada())
    made = client.post(f"{V1}/sessions", {}, content_type=JSON)
    shown = {
        "id": ID,
        "title": "",
        "state": "idle",
        "pinned": False,
        "archived": False,
        "created_at": TIME,
        "active_at": TIME,
        "platform": "",
        "parent_id": None,
    }
    opened = {"cursor": CURSOR, "personality": None, "instructions": "", "allowed_tools": None}
    unasked = {
        "auto_approve": {
            "enabled": False,
            "cap_microdollars": None,
            "sub_sessions": False,
            "inherited": False,
        }
    }
    assert (made.status_code, made.json()) == (201, {**shown, **opened, **unasked})
    assert client.get(f"{V1}/sessions").json() == {"items": [shown], "next_cursor": None}


@pytest.mark.django_db
def test_messages_and_stop():
    client, session = program(factories.ada()), factories.session()
    path = f"{V1}/sessions/{session.pk}"
    started = client.post(f"{path}/messages", {"text": "Ahoy", "run_id": "r1"}, content_type=JSON)
    accepted = {"message_id": ID, "turn_id": ID, "cursor": CURSOR}
    assert (started.status_code, started.json()) == (201, {"state": "started", "run_id": "r1", **accepted})
    queued = client.post(f"{path}/messages", {"text": "and?"}, content_type=JSON)
    waits = {"state": "queued", "run_id": None, "position": 1, "capacity": 10, **accepted}
    assert (queued.status_code, queued.json()) == (202, waits)
    assert client.get(f"{path}/messages").json() == {
        "items": [
            {
                "id": started.json()["message_id"],
                "sequence": IsPositiveInt,
                "turn_id": started.json()["turn_id"],
                "kind": "user",
                "role": "user",
                "content": "Ahoy",
                "author": "",
                "attachments": [],
                "branch": 0,
                "created_at": TIME,
                "streaming": False,
                "mid_turn": False,
                "model": "",
                "versions": 1,
                "duration_ms": None,
                "origin": "",
            }
        ],
        "has_older": False,
        "before": None,
    }
    item = {
        "id": queued.json()["message_id"],
        "text": "and?",
        "run_id": None,
        "position": 1,
        "attachments": [],
    }
    assert client.get(f"{path}/queue").json() == {"items": [item], "capacity": 10}
    stopped = client.post(f"{path}/stop", {"queue": "drop"}, content_type=JSON)
    assert (stopped.status_code, stopped.json()) == (200, {"turn_id": ID, "state": "stopping"})


@pytest.mark.django_db
def test_turns():
    turn = factories.turn(factories.session(), "cancelled", run_ids=["r1"])
    assert program(factories.ada()).get(f"{V1}/turns/{turn.pk}").json() == {
        "id": str(turn.pk),
        "session_id": str(turn.session_id),
        "status": "cancelled",
        "origin": "web",
        "run_ids": ["r1"],
        "tier": "standard",
        "mode": "",
        "model": "",
        "attempts": IsInt,
        "created_at": TIME,
        "started_at": TIME,
        "ended_at": TIME,
        "failure_code": None,
        "limit_code": None,
        "cancel_reason": None,
    }


@pytest.fixture
def waited():
    turn = factories.turn(factories.session(), "failed", failure_code="overloaded")
    return turn, api_keys.create_api_key(factories.ada()).token


@pytest.mark.django_db(transaction=True)
async def test_waiting(waited):
    turn, token = waited
    async with opened(f"{V1}/turns/{turn.pk}/wait?timeout=1", token) as call:
        assert await call.body() == (
            b'{"turn_id":"%b","status":"failed","text":"","last_text":"","client_calls":[],"limit_code":"",'
            b'"approval_ids":[],"tool_calls":[],'
            b'"usage":{"input":0,"cache_read":0,"cache_write_5m":0,"cache_write_1h":0,"output":0,"reasoning":0},'
            b'"error":{"code":"overloaded","message":"Model not responding",'
            b'"hint":"This usually passes. Try again in a moment.","details":"","retry_after_seconds":null},'
            b'"link":null}' % str(turn.pk).encode()
        )


@pytest.mark.django_db(transaction=True)
async def test_the_stream(waited):
    turn, token = waited
    async with opened(f"{V1}/sessions/{turn.session_id}/stream", token) as read:
        retry_line, id_line, event_line, data_line = (await read.block()).split(b"\n")
        assert retry_line == b"retry: 1000"
        assert event_line == b"event: session.snapshot"
        cursor = id_line.removeprefix(b"id: ")
        assert data_line.startswith(b'data: {"cursor":"%b","at":"' % cursor)


@pytest.mark.django_db
def test_files():
    from django.core.files.uploadedfile import SimpleUploadedFile

    client = program(factories.ada())
    answer = client.post(f"{V1}/files", {"files": SimpleUploadedFile("a.txt", b"abc")})
    file = {
        "id": ID,
        "uri": IsStr(regex=r"workspace://[0-9a-f-]{36}"),
        "name": "a.txt",
        "type": "text/plain",
        "size": 3,
        "session_id": None,
        "source": "upload",
        "scan": "unscanned",
        "created_at": TIME,
    }
    result = {"name": "a.txt", "status": 201, "file": file, "error": None}
    assert (answer.status_code, answer.json()) == (201, {"results": [result]})
    assert client.get(f"{V1}/files").json() == {"items": [file], "offset": 0, "has_more": False}
    assert client.get(f"{V1}/files/usage").json() == {
        "used_bytes": 3,
        "used_files": 1,
        "quota_bytes": IsPositiveInt,
        "quota_files": IsPositiveInt,
        "file_bytes": IsPositiveInt,
    }


@pytest.mark.django_db
def test_models():
    body = program(factories.ada()).get(f"{V1}/models").json()
    assert body == {"tiers": IsList(length=...), "modes": ["fast", "deep"], "models": IsList(length=...)}
    assert set(body["tiers"][0]) == {"tier", "name", "demo", "label", "allowed"}
    assert set(body["models"][0]) == {
        "name",
        "model",
        "demo",
        "label",
        "context_window",
        "supports_tools",
        "supports_images",
        "can_reason",
    }


@pytest.mark.django_db
def test_keys_and_tickets():
    browser = person(factories.ada())
    made = browser.post(f"{V1}/api-keys", {"name": "ci"}, content_type=JSON).json()
    shown = {
        "id": ID,
        "name": "ci",
        "prefix": IsStr(regex=r"[a-z0-9]{10}"),
        "scopes": ["read", "chat"],
        "created_at": TIME,
        "last_used_at": None,
        "expires_at": None,
    }
    assert made == {**shown, "key": IsStr(regex=r"ph_user_[a-z0-9]{10}_[A-Za-z0-9_-]{43}")}
    assert browser.get(f"{V1}/api-keys").json() == {"items": [shown]}
    ticket = browser.generic("POST", f"{V1}/ws-tickets").json()
    assert ticket == {"ticket": IsStr(min_length=32), "expires_in_seconds": 60}


@pytest.mark.django_db
def test_refusals():
    response = program(factories.ada()).get(f"{V1}/sessions?limit=0")
    assert response.json() == {"error": {"code": "invalid_request", "message": IsStr(min_length=5)}}
