"""L2, L7: people's REST of linking, and that bots have no part in it."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from linking.caps import admission
from linking.caps.admission import ServerMessage
from linking.links import tokens
from linking.models import LinkToken, PlatformLink, PlatformUserLink
from tests.support import factories, link_factories
from tests.support.rest_clients import JSON, NOBODYS, code_of, person, program

pytestmark = pytest.mark.django_db
HERE = "/api/v1/linking"
ROUTES = [
    ("get", f"tokens/{'A' * 43}"),
    ("post", f"tokens/{'A' * 43}/confirm-server"),
    ("post", f"tokens/{'A' * 43}/confirm-user"),
    ("get", "server-links"),
    ("get", "user-links"),
    ("patch", f"server-links/{NOBODYS}"),
    ("delete", f"server-links/{NOBODYS}"),
    ("delete", f"user-links/{NOBODYS}"),
    ("get", f"server-links/{NOBODYS}/usage"),
]


@pytest.fixture
def ada():
    return person(factories.ada())


@pytest.fixture
def bob():
    return person(factories.bob())


def call(client: Client, method: str, path: str, body: object = None):
    if method == "get":
        return client.get(f"{HERE}/{path}")
    data = "" if body is None else json.dumps(body)
    return client.generic(method.upper(), f"{HERE}/{path}", data, content_type=JSON)


def test_a_bot_key_is_refused_by_every_endpoint_for_people():
    """A-L2.1"""
    bot = link_factories.bot()
    for method, path in ROUTES:
        response = call(bot, method, path)
        assert (response.status_code, code_of(response)) == (401, "unauthenticated"), path


def test_a_bots_key_beside_a_login_is_refused_as_what_it_is(ada):
    """L2"""
    ada.defaults["HTTP_AUTHORIZATION"] = f"Bearer {link_factories.bot_key().key}"
    response = call(ada, "get", "server-links")
    assert (response.status_code, code_of(response)) == (400, "ambiguous_credentials")


def test_programs_need_the_scope_to_manage():
    """L2, A20.6"""
    token = link_factories.user_token().token
    refused = call(program(factories.ada()), "post", f"tokens/{token}/confirm-user")
    assert (refused.status_code, code_of(refused)) == (403, "insufficient_scope")
    assert call(program(factories.ada(), "manage"), "post", f"tokens/{token}/confirm-user").status_code == 200


def test_a_token_is_shown_and_confirmed_by_its_own_route(ada):
    """L7, A-L5.4"""
    token = link_factories.server_token(subject_name="<b>\u202eQuay").token
    shown = call(ada, "get", f"tokens/{token}").json()
    assert shown == {
        "kind": "server",
        "platform": "discord",
        "bot_account": link_factories.BOT,
        "subject_name": "<b>Quay",
        "requester_name": "Eve",
        "expires_at": shown["expires_at"],
    }
    wrong = call(ada, "post", f"tokens/{token}/confirm-user")
    assert (wrong.status_code, code_of(wrong)) == (400, "flow_mismatch")
    made = call(ada, "post", f"tokens/{token}/confirm-server", {"daily_cap_microdollars": 7})
    assert made.status_code == 200
    assert made.json()["daily_cap_microdollars"] == 7
    assert made.json()["server_id"] == link_factories.SERVER
    again = call(ada, "post", f"tokens/{token}/confirm-server")
    assert (again.status_code, code_of(again)) == (410, "token_expired")
    gone = call(ada, "get", f"tokens/{token}")
    assert (gone.status_code, code_of(gone)) == (410, "token_expired")


def test_every_error_of_the_table_has_its_status_and_code(ada, bob):
    """A-L7.3, A-L7.1"""
    link = link_factories.server_link()
    link_factories.user_link(person="taken")
    mine = f"server-links/{link.pk}"
    fresh = link_factories.user_token("person-2").token
    late = link_factories.user_token("person-3").token
    LinkToken.objects.filter(digest=tokens.hash_token(late)).update(expires_at="2020-01-01T00:00Z")
    cases: list[tuple[Client, str, str, object, int, str]] = [
        (ada, "get", f"tokens/{'A' * 43}", None, 404, "not_found"),
        (ada, "get", f"tokens/{late}", None, 410, "token_expired"),
        (ada, "post", f"tokens/{'A' * 43}/confirm-user", None, 404, "not_found"),
        (ada, "post", f"tokens/{late}/confirm-user", None, 410, "token_expired"),
        (ada, "post", f"tokens/{fresh}/confirm-server", None, 400, "flow_mismatch"),
        (ada, "post", f"tokens/{fresh}/confirm-user", {"dayly_cap": 1}, 400, "invalid_request"),
        (ada, "post", f"tokens/{fresh}/confirm-user", [], 400, "invalid_request"),
        (bob, "patch", mine, {"paused": True}, 403, "forbidden"),
        (bob, "delete", mine, None, 403, "forbidden"),
        (bob, "get", f"{mine}/usage", None, 403, "forbidden"),
        (ada, "patch", mine, {"paused": "yes"}, 400, "invalid_request"),
        (ada, "patch", mine, {"daily_cap_microdollars": -1}, 400, "invalid_request"),
        (ada, "patch", mine, {"allowed_channels": ["a b"]}, 400, "invalid_request"),
        (ada, "patch", mine, {"allowed_roles": ["r"] * 201}, 400, "invalid_request"),
        (ada, "patch", f"server-links/{NOBODYS}", {}, 404, "not_found"),
        (ada, "delete", f"server-links/{NOBODYS}", None, 404, "not_found"),
        (ada, "delete", f"user-links/{NOBODYS}", None, 404, "not_found"),
        (ada, "get", f"server-links/{NOBODYS}/usage", None, 404, "not_found"),
        (ada, "get", "server-links?cursor=x", None, 400, "invalid_request"),
        (ada, "get", "server-links?limit=51", None, 400, "invalid_request"),
        (Client(), "get", "server-links", None, 401, "unauthenticated"),
    ]
    for client, method, path, body, status, code in cases:
        response = call(client, method, path, body)
        assert (response.status_code, code_of(response)) == (status, code), (method, path, body)
    assert PlatformLink.objects.filter(pk=link.pk, state="active").exists()
    taken = link_factories.server_token("server-2").token
    link_factories.server_link(server_id="server-2", owner=factories.bob())
    response = call(ada, "post", f"tokens/{taken}/confirm-server")
    assert (response.status_code, code_of(response)) == (409, "already_linked")
    response = call(bob, "post", f"tokens/{taken}/confirm-server")
    assert (response.status_code, code_of(response)) == (409, "already_yours")


@pytest.mark.parametrize("odd", ["'; DROP TABLE x;--", "../../etc/passwd", "1", "", "%00", "A" * 36])
def test_an_id_that_is_none_names_nothing(ada, odd):
    """A-L7.2"""
    response = call(ada, "delete", f"server-links/{odd}")
    assert response.status_code in (404, 405)
    assert code_of(response) in ("not_found", "method_not_allowed")


def test_own_links_are_listed_newest_first_page_by_page(ada):
    """L7"""
    made = [link_factories.server_link(server_id=f"s{number}") for number in range(5)]
    link_factories.server_link(factories.bob(), server_id="others")
    seen: list[str] = []
    cursor = ""
    while True:
        page = call(ada, "get", f"server-links?limit=2&cursor={cursor}").json()
        seen += [one["id"] for one in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert sorted(seen) == sorted(str(link.pk) for link in made)
    newest = [
        str(one.pk)
        for one in PlatformLink.objects.filter(owner=factories.ada()).order_by("-created_at", "id")
    ]
    assert seen == newest
    link_factories.user_link()
    [person_link] = call(ada, "get", "user-links").json()["items"]
    assert person_link["display_name"] == "Ada L."


def test_a_link_is_changed_in_what_is_named_and_deleted_once(ada):
    """L7, L8"""
    link = link_factories.server_link(daily_cap_microdollars=5)
    changed = call(
        ada, "patch", f"server-links/{link.pk}", {"paused": True, "allowed_roles": ["crew"]}
    ).json()
    assert (changed["state"], changed["allowed_roles"], changed["daily_cap_microdollars"]) == (
        "paused",
        ["crew"],
        5,
    )
    changed = call(ada, "patch", f"server-links/{link.pk}", {"daily_cap_microdollars": None}).json()
    assert (changed["state"], changed["daily_cap_microdollars"]) == ("paused", None)
    assert call(ada, "delete", f"server-links/{link.pk}").json() == {"deleted": True}
    assert call(ada, "delete", f"server-links/{link.pk}").status_code == 404
    other = link_factories.user_link()
    assert call(ada, "delete", f"user-links/{other.pk}").json() == {"deleted": True}
    assert not PlatformUserLink.objects.exists()


def test_usage_is_reported_in_percent_of_the_caps(ada):
    """L7: null without a cap; a cap of nothing is used up"""
    link = link_factories.server_link(daily_cap_microdollars=200_000)
    for number in range(3):
        admission.admit_message(
            link, ServerMessage(run_id=str(number), container_id=f"c{number // 2}", platform_user_id="m")
        )
    shown = call(ada, "get", f"server-links/{link.pk}/usage").json()
    assert shown == {
        "daily_percent": 75,
        "monthly_percent": None,
        "daily_cap_microdollars": 200_000,
        "monthly_cap_microdollars": None,
        "top_channels": [{"container_id": "c0", "turns": 2}, {"container_id": "c1", "turns": 1}],
    }
    PlatformLink.objects.update(daily_cap_microdollars=0)
    assert call(ada, "get", f"server-links/{link.pk}/usage").json()["daily_percent"] == 100


def test_writing_with_a_cookie_needs_the_token_against_forgery():
    """L2"""
    token = link_factories.user_token().token
    response = call(person(factories.ada(), csrf=True), "post", f"tokens/{token}/confirm-user")
    assert (response.status_code, code_of(response)) == (403, "csrf_failed")
    assert LinkToken.objects.get().used_at is None
