"""Who may enter REST: cookies with CSRF, keys with scopes, and how often (E3, A20.6, L10)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from copilot.accounts import api_keys
from copilot.api import authentication
from copilot.models import ApiKey
from tests.support import factories
from tests.support.rest_clients import JSON, NOBODYS, V1, code_of, person, program

pytestmark = pytest.mark.django_db
SESSIONS = f"{V1}/sessions"


def test_without_credentials_there_is_401_with_a_challenge():
    response = Client().get(SESSIONS)
    assert (response.status_code, code_of(response)) == (401, "unauthenticated")
    assert response["WWW-Authenticate"].startswith("Bearer")


def test_every_bad_key_gets_the_same_401():
    """L10: unknown, wrong, revoked and expired keys cannot be told apart."""
    good, revoked, expired = (api_keys.create_api_key(factories.ada()) for _ in range(3))
    api_keys.revoke_api_key(factories.ada().pk, revoked.row.id)
    ApiKey.objects.filter(pk=expired.row.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    tokens = [
        "ph_user_aaaaaaaaaa_" + "a" * 43,
        good.token[:-1] + ("A" if good.token[-1] != "A" else "B"),
        revoked.token,
        expired.token,
        "nonsense",
        "",
        "ü" * 100,
    ]
    answers = {
        Client().get(SESSIONS, headers={"authorization": f"Bearer {token}"}).content for token in tokens
    }
    assert answers == {Client().get(SESSIONS).content}


def test_a_bad_key_is_refused_even_beside_a_good_cookie():
    response = person(factories.ada()).get(SESSIONS, headers={"authorization": "Bearer nonsense"})
    assert response.status_code == 401


def test_a_cookie_reads_without_and_writes_only_with_a_csrf_token():
    browser = person(factories.ada(), csrf=True)
    assert browser.get(SESSIONS).status_code == 200
    refused = browser.post(SESSIONS, {}, content_type=JSON)
    assert (refused.status_code, code_of(refused)) == (403, "csrf_failed")
    browser.cookies["csrftoken"] = token = "a" * 32
    assert browser.post(SESSIONS, {}, content_type=JSON, headers={"x-csrftoken": token}).status_code == 201


def test_a_key_needs_no_csrf_token():
    made = api_keys.create_api_key(factories.ada())
    client = Client(enforce_csrf_checks=True, headers={"authorization": f"bearer {made.token}"})
    assert client.post(SESSIONS, {}, content_type=JSON).status_code == 201


def test_an_inactive_account_gets_its_own_error_by_cookie_and_by_key():
    """T3.1"""
    browser, client = person(factories.ada()), program(factories.ada())
    User.objects.update(is_active=False)
    for caller in (browser, client):
        response = caller.get(SESSIONS)
        assert (response.status_code, code_of(response)) == (403, "account_inactive")


READS = [
    "sessions",
    f"sessions/{NOBODYS}",
    f"sessions/{NOBODYS}/messages",
    f"sessions/{NOBODYS}/queue",
    f"turns/{NOBODYS}",
    "files",
    "files/usage",
    f"files/{NOBODYS}",
    f"files/{NOBODYS}/download",
    "models",
    "api-keys",
]
WRITES = [
    ("post", "sessions"),
    ("patch", f"sessions/{NOBODYS}"),
    ("delete", f"sessions/{NOBODYS}"),
    ("post", f"sessions/{NOBODYS}/restore"),
    ("post", f"sessions/{NOBODYS}/messages"),
    ("post", f"sessions/{NOBODYS}/stop"),
    ("patch", f"sessions/{NOBODYS}/queue/{NOBODYS}"),
    ("delete", f"sessions/{NOBODYS}/queue/{NOBODYS}"),
    ("post", f"sessions/{NOBODYS}/queue/{NOBODYS}/send_now"),
    ("post", f"sessions/{NOBODYS}/queue/{NOBODYS}/move"),
    ("post", f"questions/{NOBODYS}/answer"),
    ("post", "files"),
    ("patch", f"files/{NOBODYS}"),
    ("delete", f"files/{NOBODYS}"),
    ("post", f"files/{NOBODYS}/restore"),
    ("post", "ws-tickets"),
]


@pytest.mark.parametrize("path", READS)
def test_reading_needs_the_scope_read(path):
    """A20.6"""
    refused = program(factories.ada(), "chat", "manage").get(f"{V1}/{path}")
    assert (refused.status_code, refused.json()["error"]["scope"]) == (403, "read")
    assert code_of(refused) == "insufficient_scope"
    assert program(factories.ada(), "read").get(f"{V1}/{path}").status_code in (200, 404)


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_writing_needs_the_scope_chat(method, path):
    """A20.6"""
    refused = program(factories.ada(), "read", "manage").generic(method.upper(), f"{V1}/{path}")
    assert (refused.status_code, code_of(refused)) == (403, "insufficient_scope")
    assert refused.json()["error"]["scope"] == "chat"


def test_a_ticket_needs_both_scopes_because_a_socket_does_both():
    refused = program(factories.ada(), "chat").post(f"{V1}/ws-tickets")
    assert refused.json()["error"]["scope"] == "read"


def test_a_key_never_makes_or_revokes_keys():
    """A20.6"""
    key = api_keys.create_api_key(factories.grace(), scopes=api_keys.SCOPES)
    client = Client(headers={"authorization": f"Bearer {key.token}"})
    for method, path in (("POST", "api-keys"), ("DELETE", f"api-keys/{key.row.id}")):
        refused = client.generic(method, f"{V1}/{path}")
        assert (refused.status_code, code_of(refused)) == (403, "session_required")
    assert api_keys.verify_api_key(key.token) is not None
    assert ApiKey.objects.count() == 1


def test_calls_beyond_the_rate_get_429_and_other_callers_are_unharmed(monkeypatch):
    """L10: counted per key."""
    monkeypatch.setattr(authentication, "CALLS_PER_MINUTE", 3)
    busy, other = program(factories.ada()), program(factories.ada())
    answers = [busy.get(SESSIONS) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert code_of(answers[3]) == "too_many_requests"
    assert 1 <= int(answers[3]["Retry-After"]) <= 60
    assert answers[3].json()["error"]["retry_after_seconds"] == int(answers[3]["Retry-After"])
    assert other.get(SESSIONS).status_code == 200
