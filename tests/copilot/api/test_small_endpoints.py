"""Models, keys, tickets, questions, turns and the OpenAPI document over REST (E3)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator

from copilot.accounts import api_keys
from copilot.api import schema_views
from copilot.models import ApiKey, Question
from copilot.realtime import authentication
from tests.support import factories
from tests.support.rest_clients import JSON, NOT_FOUND, V1, code_of, person, program

pytestmark = pytest.mark.django_db


def test_models_are_listed_with_the_demo_label_and_without_secrets_or_prices():
    """A4.6, A19.8"""
    body = program(factories.ada()).get(f"{V1}/models").json()
    assert "standard" in {tier["tier"] for tier in body["tiers"]}
    demo = [model for model in body["models"] if model["demo"]]
    assert demo
    assert {model["label"] for model in demo} == {"Demo, scripted, no AI"}
    text = repr(body)
    for word in ("credential", "price", "cost", "base_url"):
        assert word not in text


def test_a_key_is_shown_once_and_then_only_by_its_prefix():
    browser = person(factories.ada())
    made = browser.post(f"{V1}/api-keys", {"name": "ci", "scopes": ["read"]}, content_type=JSON)
    assert made.status_code == 201
    assert made["Cache-Control"] == "no-store"
    token = made.json()["key"]
    assert Client(headers={"authorization": f"Bearer {token}"}).get(f"{V1}/sessions").status_code == 200
    [listed] = browser.get(f"{V1}/api-keys").json()["items"]
    assert (listed["name"], listed["scopes"], listed["prefix"]) == ("ci", ["read"], token.split("_")[2])
    assert token.split("_", 3)[3] not in browser.get(f"{V1}/api-keys").content.decode()


def test_an_expiry_is_reported_in_utc():
    body = {"expires_at": "2099-06-01T12:00:00+02:00"}
    made = person(factories.ada()).post(f"{V1}/api-keys", body, content_type=JSON).json()
    assert made["expires_at"] == "2099-06-01T10:00:00.000Z"


def test_a_revoked_key_stops_working_at_once():
    browser = person(factories.ada())
    key = api_keys.create_api_key(factories.ada())
    assert browser.delete(f"{V1}/api-keys/{key.row.id}").status_code == 204
    assert browser.delete(f"{V1}/api-keys/{key.row.id}").status_code == 404
    assert Client(headers={"authorization": f"Bearer {key.token}"}).get(f"{V1}/sessions").status_code == 401


def test_foreign_keys_look_missing():
    key = api_keys.create_api_key(factories.ada())
    assert person(factories.bob()).delete(f"{V1}/api-keys/{key.row.id}").content == NOT_FOUND


@pytest.mark.parametrize(
    "body",
    [
        {"scopes": []},
        {"scopes": ["root"]},
        {"scopes": "read"},
        {"name": "x" * 101},
        {"expires_at": "tomorrow"},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"expires_at": "2040-01-01T00:00:00"},
        {"user": 1},
    ],
)
def test_odd_keys_are_400(body):
    refused = person(factories.ada()).post(f"{V1}/api-keys", body, content_type=JSON)
    assert (refused.status_code, code_of(refused)) == (400, "invalid_request")
    assert not ApiKey.objects.exists()


def test_only_staff_may_have_a_staff_key():
    body = {"scopes": ["read", "staff"]}
    refused = person(factories.ada()).post(f"{V1}/api-keys", body, content_type=JSON)
    assert (refused.status_code, code_of(refused)) == (403, "forbidden")
    assert person(factories.grace()).post(f"{V1}/api-keys", body, content_type=JSON).status_code == 201


def test_a_ticket_opens_one_socket_for_its_user():
    """E3: one use, 60 s."""
    body = program(factories.ada()).generic("POST", f"{V1}/ws-tickets").json()
    assert body["expires_in_seconds"] == 60
    ticket = authentication.redeem_ticket(body["ticket"])
    assert ticket is not None
    assert (ticket.user_id, ticket.scopes) == (factories.ada().pk, frozenset({"read", "chat"}))
    assert authentication.redeem_ticket(body["ticket"]) is None


def question(session, **fields):
    turn = factories.turn(session, "running")
    deadline = timezone.now() + timedelta(minutes=1)
    return Question.objects.create(
        session=session, turn=turn, call_id="c", question="Tea or coffee?", deadline=deadline, **fields
    )


def test_the_first_answer_wins_and_the_second_is_409():
    """A12.4"""
    client, asked = program(factories.ada()), question(factories.session(), choices=["tea", "coffee"])
    path = f"{V1}/questions/{asked.pk}/answer"
    assert client.post(path, {"choice": "tea"}, content_type=JSON).status_code == 204
    late = client.post(path, {"choice": "coffee"}, content_type=JSON)
    assert late.status_code == 409
    asked.refresh_from_db()
    assert (asked.outcome, asked.answer) == ("answered", "tea")


def test_a_choice_that_was_not_offered_is_400():
    """A12.3"""
    client, asked = program(factories.ada()), question(factories.session(), choices=["tea", "coffee"])
    refused = client.post(f"{V1}/questions/{asked.pk}/answer", {"choice": "gin"}, content_type=JSON)
    assert (refused.status_code, code_of(refused)) == (400, "invalid_request")


def test_a_turn_is_read_without_any_cost(django_assert_num_queries):
    """A19.8"""
    client, turn = (
        program(factories.ada()),
        factories.turn(factories.session(), "failed", failure_code="overloaded"),
    )
    client.get(f"{V1}/turns/{turn.pk}")
    with django_assert_num_queries(2):  # key and user, turn
        body = client.get(f"{V1}/turns/{turn.pk}").json()
    assert (body["status"], body["failure_code"]) == ("failed", "overloaded")
    assert not [name for name in body if "cost" in name or "price" in name]


def test_the_openapi_document_is_public_and_names_every_endpoint():
    document = Client().get("/api/schema").json()
    paths = set(document["paths"])
    assert {
        "/api/v1/sessions",
        "/api/v1/sessions/{session_id}/messages",
        "/api/v1/sessions/{session_id}/stream",
        "/api/v1/turns/{turn_id}/wait",
        "/api/v1/files",
        "/api/v1/api-keys",
    } <= paths
    assert set(document["components"]["securitySchemes"]) >= {"apiKey", "sessionCookie"}
    sent = document["paths"]["/api/v1/sessions/{session_id}/messages"]["post"]
    assert set(sent["responses"]) >= {"201", "202", "400", "401", "404", "409", "429", "503"}


def test_the_document_says_which_scope_a_call_needs():
    """L11, A20.6: and no docstring of a base class that is meant for developers"""
    paths = Client().get("/api/schema").json()["paths"]
    said = {
        path: paths[path][method].get("description", "")
        for method, path in (
            ("post", "/api/bot/v1/turns"),
            ("get", "/api/bot/v1/me"),
            ("get", "/api/v1/sessions"),
            ("post", "/api/v1/api-keys"),
        )
    }
    assert said["/api/bot/v1/turns"] == "A key needs the scope `turns:start`."
    assert said["/api/v1/sessions"].endswith("A key needs the scope `read`.")
    assert "a key cannot do this" in said["/api/v1/api-keys"]
    assert not [path for path, words in said.items() if "known caller" in words or "A view says" in words]


def test_the_viewer_needs_no_foreign_asset_and_no_inline_script():
    """W4.3"""
    page = Client().get("/api/docs")
    assert page.status_code == 200
    policy = page["Content-Security-Policy"]
    assert "script-src 'self';" in policy + ";"
    html = page.content.decode()
    assert "https://" not in html
    assert html.count("<script") == html.count("<script src=")
    script = Client().get("/api/docs?script=")
    assert script["Content-Type"].startswith("application/javascript")


def test_the_viewer_and_the_document_refuse_in_the_same_form():
    assert code_of(Client().post("/api/schema")) == "method_not_allowed"
    assert code_of(Client().delete("/api/docs")) == "method_not_allowed"


@pytest.mark.attack
def test_the_document_is_made_once_and_no_parameter_changes_it(monkeypatch):
    first = Client().get("/api/schema")
    monkeypatch.setattr(SchemaGenerator, "get_schema", lambda *_, **__: pytest.fail("made again"))
    assert first["Cache-Control"] == "public, max-age=300"
    for query in ("", "?version=a%0d%0aX-Evil:%201", "?lang=%00", "?lang=" + "a" * 5000, "?format=json"):
        again = Client().get(f"/api/schema{query}")
        assert (again.status_code, again.content) == (200, first.content)
        assert "X-Evil" not in again.headers
    assert Client().get("/api/schema", headers={"If-None-Match": first["ETag"]}).status_code == 304
    assert Client().get("/api/schema", headers={"If-None-Match": '"other", \x00'}).status_code == 200


@pytest.mark.attack
def test_the_document_and_its_viewer_are_limited_per_address(monkeypatch):
    monkeypatch.setattr(schema_views, "READS_PER_MINUTE", 3)
    answers = [Client().get("/api/schema", REMOTE_ADDR="192.0.2.77") for _ in range(4)]
    assert [one.status_code for one in answers] == [200, 200, 200, 429]
    assert int(answers[-1]["Retry-After"]) > 0
    assert Client().get("/api/docs", REMOTE_ADDR="192.0.2.77").status_code == 429
    assert Client().get("/api/schema", REMOTE_ADDR="192.0.2.78").status_code == 200
