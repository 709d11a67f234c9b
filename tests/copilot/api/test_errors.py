"""Every refusal of REST has one form, and no input makes a 500 (E3, T11)."""

from __future__ import annotations

import json

import pytest
from django.db import OperationalError, connection
from django.test import Client

from config.core import redis
from copilot.models import Message
from tests.support import factories
from tests.support.rest_clients import JSON, NOBODYS, V1, code_of, person, program

pytestmark = pytest.mark.django_db
DEEP = b'{"text":' + b"[" * 10_000 + b"]" * 10_000 + b"}"

BAD_JSON = [
    b"{",
    b"nonsense",
    b"[]",
    b'"text"',
    b"null",
    b"1",
    b'{"text": NaN}',
    b'{"text": Infinity}',
    b'{"text": 1e999}',
    b'{"text": "\\ud800"}',
    b'{"text": "\xff\xfe"}',
    b"\xff\xfe{\x00}\x00",
    b'{"text": "a" "b"}',
    b'{"text": "tab\tinside"}',
    b'{"text": "a"} {"text": "b"}',
    DEEP,
    b"[" * 10_000,
]
BAD_MESSAGES: list[tuple[dict[str, object], str]] = [
    ({"text": 1}, "invalid_request"),
    ({"text": None}, "invalid_request"),
    ({"text": ["a"]}, "invalid_request"),
    ({"text": "hi", "unknown": 1}, "invalid_request"),
    ({"text": "hi", "attachments": "x"}, "invalid_request"),
    ({"text": "hi", "attachments": [1]}, "invalid_request"),
    ({"text": "hi", "attachments": [{}]}, "invalid_request"),
    ({"text": "hi", "context": "x"}, "invalid_request"),
    ({"text": "hi", "context": {"url": 1}}, "invalid_request"),
    ({"text": "hi", "context": {"title": "x"}}, "invalid_request"),
    ({"text": "hi", "tier": "huge"}, "invalid_request"),
    ({"text": "hi", "tier": 1}, "invalid_request"),
    ({"text": "hi", "mode": "slow"}, "invalid_request"),
    ({"text": "hi", "mode": True}, "invalid_request"),
    ({"text": "hi", "run_id": "with space"}, "invalid_request"),
    ({"text": "hi", "run_id": "x" * 129}, "invalid_request"),
    ({"text": "hi", "run_id": ""}, "invalid_request"),
    ({"text": "hi", "run_id": "ünïcode"}, "invalid_request"),
    ({"text": "hi", "run_id": "line\n"}, "invalid_request"),
    ({"text": "hi", "run_id": 7}, "invalid_request"),
    ({}, "empty_message"),
    ({"text": ""}, "empty_message"),
    ({"text": " \n\t "}, "empty_message"),
    ({"text": "\x00"}, "empty_message"),
    ({"text": "", "attachments": [NOBODYS, "no-uuid", "\x00"]}, "empty_message"),
    ({"text": "x" * 64_001}, "message_too_long"),
    ({"text": "hi", "attachments": [NOBODYS] * 21}, "too_many_attachments"),
    ({"text": "hi", "context": {"url": "x" * 2_001}}, "context_too_long"),
    ({"text": "hi", "context": {"text": "x" * 32_001}}, "context_too_long"),
]


@pytest.mark.parametrize("content", BAD_JSON, ids=range(len(BAD_JSON)))
def test_a_body_that_is_no_json_object_is_400(content):
    path = f"{V1}/sessions/{factories.session().pk}/messages"
    response = program(factories.ada()).post(path, content, content_type=JSON)
    assert (response.status_code, code_of(response)) == (400, "invalid_request")


@pytest.mark.parametrize(("fields", "code"), BAD_MESSAGES, ids=range(len(BAD_MESSAGES)))
def test_a_message_beyond_the_limits_is_refused_by_name(fields, code):
    """T11"""
    path = f"{V1}/sessions/{factories.session().pk}/messages"
    response = program(factories.ada()).post(path, json.dumps(fields), content_type=JSON)
    assert (response.status_code, code_of(response)) == (400, code)


BAD_BODIES: list[tuple[str, str, object]] = [
    ("POST", "sessions", {"title": 1}),
    ("POST", "sessions", {"title": "x" * 201}),
    ("POST", "sessions", {"name": "x"}),
    ("PATCH", "sessions/{own}", {"pinned": "yes"}),
    ("PATCH", "sessions/{own}", {"archived": 1}),
    ("PATCH", "sessions/{own}", {"owner": 1}),
    ("PATCH", "sessions/{own}", []),
    ("POST", "sessions/{own}/stop", {"queue": "forget"}),
    ("POST", "sessions/{own}/stop", {"queue": None}),
    ("PATCH", "sessions/{own}/queue/" + NOBODYS, {"text": 1}),
    ("PATCH", "sessions/{own}/queue/" + NOBODYS, {}),
    ("POST", "sessions/{own}/queue/" + NOBODYS + "/move", {"position": 0}),
    ("POST", "sessions/{own}/queue/" + NOBODYS + "/move", {"position": "1"}),
    ("POST", "sessions/{own}/queue/" + NOBODYS + "/move", {"position": 1e30}),
    ("POST", f"questions/{NOBODYS}/answer", {}),
    ("POST", f"questions/{NOBODYS}/answer", {"text": "a", "choice": "b"}),
    ("POST", f"questions/{NOBODYS}/answer", {"text": 1}),
    ("PATCH", f"files/{NOBODYS}", {"name": ""}),
    ("PATCH", f"files/{NOBODYS}", {"name": 3}),
    ("POST", "ws-tickets", {"for": "me"}),
]


@pytest.mark.parametrize(("method", "path", "body"), BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_wrong_types_values_and_unknown_keys_are_400(method, path, body):
    path = path.format(own=factories.session().pk)
    response = program(factories.ada()).generic(method, f"{V1}/{path}", json.dumps(body), content_type=JSON)
    assert (response.status_code, code_of(response)) == (400, "invalid_request")


BAD_QUERIES = [
    ("sessions?limit=0", "invalid_request"),
    ("sessions?limit=51", "invalid_request"),
    ("sessions?limit=ten", "invalid_request"),
    ("sessions?limit=1&limit=2", "invalid_request"),
    ("sessions?archived=maybe", "invalid_request"),
    ("sessions?order=title", "invalid_request"),
    ("sessions?cursor=nonsense", "invalid_cursor"),
    ("sessions?cursor=%ff%fe", "invalid_cursor"),
    ("sessions?cursor=MXwyMDI2fA", "invalid_cursor"),
    ("sessions?q=" + "x" * 201, "invalid_request"),
    ("sessions/{own}/messages?before=0", "invalid_request"),
    ("sessions/{own}/messages?before=x", "invalid_request"),
    ("sessions/{own}/messages?before=99999999999999999999", "invalid_request"),
    ("sessions/{own}/messages?limit=201", "invalid_request"),
    ("files?limit=101", "invalid_request"),
    ("files?offset=10001", "invalid_request"),
    ("files?session=1", "invalid_request"),
    ("files?x=1", "invalid_request"),
]


@pytest.mark.parametrize(("path", "code"), BAD_QUERIES, ids=range(len(BAD_QUERIES)))
def test_bad_query_strings_are_400(path, code):
    response = program(factories.ada()).get(f"{V1}/{path.format(own=factories.session().pk)}")
    assert (response.status_code, code_of(response)) == (400, code)


@pytest.mark.parametrize("q", ["%00", "a%00b", "%ff", "%25", "_", "\\", "'", "%F0%9F%98%80"])
def test_any_search_text_is_answered(q):
    assert program(factories.ada()).get(f"{V1}/sessions?q={q}").status_code == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
def test_other_methods_are_405_in_the_same_form(method):
    response = program(factories.ada()).generic(method, f"{V1}/sessions")
    assert (response.status_code, code_of(response)) == (405, "method_not_allowed")
    assert "POST" in response["Allow"]


def test_what_nobody_accepts_is_406():
    response = program(factories.ada()).get(f"{V1}/sessions", headers={"accept": "text/csv"})
    assert (response.status_code, code_of(response)) == (406, "not_acceptable")


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "text/json", "x" * 300]
)
def test_bodies_of_other_types_are_415(content_type):
    response = program(factories.ada()).post(f"{V1}/sessions", "{}", content_type=content_type)
    assert (response.status_code, code_of(response)) == (415, "unsupported_media_type")


def test_a_json_content_type_may_have_parameters():
    response = program(factories.ada()).post(
        f"{V1}/sessions", "{}", content_type="Application/JSON; charset=utf-8"
    )
    assert response.status_code == 201


def test_too_many_bytes_are_413():
    big = json.dumps({"title": "x" * (3 * 2**20)})
    response = program(factories.ada()).post(f"{V1}/sessions", big, content_type=JSON)
    assert (response.status_code, code_of(response)) == (413, "too_large")


def test_a_database_that_is_away_is_503():
    """T9.3"""

    def away(*_args):
        raise OperationalError("connection refused")

    caller = program(factories.ada())
    with connection.execute_wrapper(away):
        response = caller.get(f"{V1}/sessions")
    assert (response.status_code, code_of(response)) == (503, "unavailable")
    assert int(response["Retry-After"]) > 0
    assert b"refused" not in response.content


@pytest.fixture
def no_redis(settings):
    """Redis does not answer."""
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    forget_connections()
    yield
    forget_connections()


def forget_connections():
    redis.get_redis.cache_clear()
    redis.get_script.cache_clear()


@pytest.mark.parametrize("path", ["messages", "ticket"])
def test_a_redis_that_is_away_is_503_and_nothing_is_half_written(path, no_redis):
    """T9.3"""
    caller = program(factories.ada())
    path = f"{V1}/sessions/{factories.session().pk}/messages" if path == "messages" else f"{V1}/ws-tickets"
    body = {"text": "hi"} if path.endswith("messages") else {}
    response = caller.post(path, body, content_type=JSON)
    assert (response.status_code, code_of(response)) == (503, "unavailable")
    assert not Message.objects.exists()


def test_reading_works_without_redis(no_redis):
    """T2.1: what is durable is in Postgres; the rate counter fails open."""
    caller, session = program(factories.ada()), factories.session()
    for path in (
        "sessions",
        f"sessions/{session.pk}/messages",
        f"sessions/{session.pk}/queue",
        "files",
        "models",
    ):
        assert caller.get(f"{V1}/{path}").status_code == 200, path


def test_unknown_paths_ask_for_credentials_first():
    assert Client().get(f"{V1}/nowhere").status_code == 401


def test_no_answer_is_ever_422():
    response = person(factories.ada()).post(f"{V1}/sessions", {"title": 5}, content_type=JSON)
    assert response.status_code == 400
