"""Ids that are not the caller's, not anybody's or not ids at all look the same everywhere (E3, S3)."""

from __future__ import annotations

import json

import pytest
from django.utils import timezone

from copilot.files import services as files
from copilot.models import Question
from tests.support import factories
from tests.support.rest_clients import JSON, NOBODYS, NOT_FOUND, V1, program

pytestmark = [pytest.mark.django_db, pytest.mark.attack]

PLACES = [
    ("GET", "sessions/{session}"),
    ("PATCH", "sessions/{session}"),
    ("DELETE", "sessions/{session}"),
    ("POST", "sessions/{session}/restore"),
    ("GET", "sessions/{session}/messages"),
    ("POST", "sessions/{session}/messages"),
    ("POST", "sessions/{session}/stop"),
    ("GET", "sessions/{session}/queue"),
    ("PATCH", "sessions/{session}/queue/{message}"),
    ("DELETE", "sessions/{session}/queue/{message}"),
    ("POST", "sessions/{session}/queue/{message}/send_now"),
    ("POST", "sessions/{session}/queue/{message}/move"),
    ("GET", "turns/{turn}"),
    ("POST", "questions/{question}/answer"),
    ("GET", "files/{file}"),
    ("PATCH", "files/{file}"),
    ("DELETE", "files/{file}"),
    ("POST", "files/{file}/restore"),
    ("GET", "files/{file}/download"),
]
BODIES = {
    "messages": {"text": "hi"},
    "move": {"position": 1},
    "answer": {"text": "a"},
    "files": {"name": "a"},
}


def body_for(method: str, path: str) -> str:
    if method == "PATCH":
        return json.dumps(
            {"name": "a"} if path.startswith("files") else {"text": "a"} if "queue" in path else {}
        )
    return json.dumps(BODIES.get(path.rsplit("/", 1)[-1], {})) if method == "POST" else ""


@pytest.mark.parametrize(("method", "path"), PLACES)
def test_foreign_unknown_and_malformed_ids_give_the_same_bytes(method, path):
    """E3, A-S3.1, A-S3.3"""
    owned = factories.session(factories.ada(), title="mine")
    turn = factories.turn(owned)
    waiting = factories.pending(owned, "wait")
    foreign = {
        "session": owned.pk,
        "message": waiting.pk,
        "turn": turn.pk,
        "question": make_question(owned, turn),
        "file": make_file(),
    }
    names = list(foreign)
    malformed = [
        "550E8400-E29B-41D4-A716-446655440000",
        "1",
        "..%2f",
        "%00",
        "x" * 10_000,
        NOBODYS.replace("-", ""),
    ]
    bob = program(factories.bob())
    fillings = [foreign, dict.fromkeys(names, NOBODYS), *(dict.fromkeys(names, bad) for bad in malformed)]
    answers = [
        bob.generic(method, f"{V1}/{path.format(**ids)}", body_for(method, path), content_type=JSON)
        for ids in fillings
    ]
    assert {(answer.status_code, answer.content) for answer in answers} == {(404, NOT_FOUND)}


def make_question(session, turn):
    return Question.objects.create(
        session=session, turn=turn, call_id="c1", question="Why?", choices=[], deadline=timezone.now()
    ).pk


def make_file():
    return files.store_file(factories.ada().pk, name="a.txt", content=b"secret", source="upload").pk


@pytest.mark.parametrize("path", ["", "nowhere", "sessions/", "sessions/x/y", "../v1", "sessions//messages"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_paths_that_lead_nowhere_are_the_same_404(method, path):
    response = program(factories.ada()).generic(method, f"{V1}/{path}")
    assert (response.status_code, response.content) == (404, NOT_FOUND)
