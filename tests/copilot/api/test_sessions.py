"""Sessions over REST: list, make, change, delete, restore (E3)."""

from __future__ import annotations

import pytest

from copilot.models import Session
from tests.support import factories
from tests.support.rest_clients import JSON, V1, person, program

pytestmark = pytest.mark.django_db
SESSIONS = f"{V1}/sessions"


def test_a_session_is_made_and_read_back():
    client = program(factories.ada())
    made = client.post(SESSIONS, {"title": "Plans"}, content_type=JSON)
    assert made.status_code == 201
    assert client.get(f"{SESSIONS}/{made.json()['id']}").json() == made.json()


def test_an_empty_body_makes_a_session_too():
    assert program(factories.ada()).generic("POST", SESSIONS).status_code == 201


def test_nul_characters_are_stripped_from_titles():
    """T11"""
    made = program(factories.ada()).post(SESSIONS, {"title": "a\x00b"}, content_type=JSON)
    assert made.json()["title"] == "ab"


def test_titles_pins_and_archives_change_one_by_one():
    client, session = program(factories.ada()), factories.session(title="old")
    path = f"{SESSIONS}/{session.pk}"
    assert client.patch(path, {"title": "new"}, content_type=JSON).json()["title"] == "new"
    pinned = client.patch(path, {"pinned": True}, content_type=JSON).json()
    assert (pinned["title"], pinned["pinned"], pinned["archived"]) == ("new", True, False)
    assert client.patch(path, {"archived": True}, content_type=JSON).json()["archived"] is True
    assert client.patch(path, {"archived": False}, content_type=JSON).json()["archived"] is False
    assert client.patch(path, {}, content_type=JSON).json()["pinned"] is True


def test_a_deleted_session_is_gone_until_restored():
    client, session = program(factories.ada()), factories.session(title="kept")
    path = f"{SESSIONS}/{session.pk}"
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404
    assert client.delete(path).status_code == 404
    assert client.get(SESSIONS).json()["items"] == []
    assert client.post(f"{path}/restore").json()["title"] == "kept"
    assert client.get(path).status_code == 200
    assert client.post(f"{path}/restore").status_code == 404


def test_pages_follow_each_other_without_gap_or_repeat():
    """T11: at most 50 a page, cursor paging."""
    client = program(factories.ada())
    for number in range(7):
        factories.session(title=str(number))
    seen: list[str] = []
    path = f"{SESSIONS}?limit=3"
    page = client.get(path).json()
    while True:
        seen += [item["title"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        page = client.get(f"{path}&cursor={page['next_cursor']}").json()
    assert seen == ["6", "5", "4", "3", "2", "1", "0"]


def test_search_and_archive_choose_what_is_listed():
    client = program(factories.ada())
    factories.session(title="Red boats")
    archived = factories.session(title="Blue boats")
    factories.session(factories.bob(), title="Red boats of Bob")
    client.patch(f"{SESSIONS}/{archived.pk}", {"archived": True}, content_type=JSON)
    assert [one["title"] for one in client.get(f"{SESSIONS}?q=boats").json()["items"]] == ["Red boats"]
    assert [one["title"] for one in client.get(f"{SESSIONS}?archived=true").json()["items"]] == ["Blue boats"]


def test_a_list_costs_the_same_statements_however_long(django_assert_num_queries):
    client = program(factories.ada())
    for _ in range(2):
        factories.turn(factories.session())
    client.get(SESSIONS)  # the key's last use is written now
    with django_assert_num_queries(3):  # key and user, sessions, their turns
        client.get(SESSIONS)
    for _ in range(20):
        factories.turn(factories.session())
    with django_assert_num_queries(3):
        assert len(client.get(SESSIONS).json()["items"]) == 22


def test_the_cookie_of_a_page_works_as_well_as_a_key():
    made = person(factories.ada()).post(SESSIONS, {}, content_type=JSON)
    assert Session.objects.get(pk=made.json()["id"]).owner == factories.ada()
