"""A page that cannot be made says whether it is broken or only comes later (E3)."""

from __future__ import annotations

import pytest
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.config.test_error_views")]
AWAY = ["SELECT * FROM made_by_a_later_migration", "SELECT pg_terminate_backend(pg_backend_pid())"]
BUG = "SELECT 1 / 0"
handler500 = "config.error_views.show_server_error"


def page(request: HttpRequest) -> HttpResponse:
    try:
        with connection.cursor() as cursor:
            cursor.execute(request.GET["sql"])
    finally:
        connection.close()
    return HttpResponse("made")


async def waiting_page(request: HttpRequest) -> HttpResponse:
    from asgiref.sync import sync_to_async

    return await sync_to_async(page)(request)


urlpatterns = [
    path("page", page),
    path("api/page", page),
    path("waiting", waiting_page),
    path("", include("config.urls")),
]


def client() -> Client:
    return Client(raise_request_exception=False)


@pytest.mark.parametrize("sql", AWAY)
@pytest.mark.parametrize("address", ["/page", "/waiting"])
def test_a_page_reloads_itself_once_its_tables_or_server_are_back(address: str, sql: str):
    """E3, W4: before the first migration, and while Postgres is away"""
    answer = client().get(address, {"sql": sql})
    assert (answer.status_code, answer["Retry-After"]) == (503, "3")
    assert '<meta http-equiv="refresh" content="3">' in answer.content.decode()


def test_a_form_is_not_sent_twice():
    answer = client().post(f"/page?sql={AWAY[0]}")
    assert answer.status_code == 503
    assert "refresh" not in answer.content.decode()
    assert "Go back and try again" in answer.content.decode()


def test_a_program_gets_the_error_in_its_own_format():
    """E3: code, and when to come back"""
    answer = client().get("/api/page", {"sql": AWAY[0]})
    assert (answer.status_code, answer["Retry-After"]) == (503, "3")
    assert answer.json()["error"]["code"] == "unavailable"


def test_a_bug_is_a_bug():
    answer = client().get("/page", {"sql": BUG})
    assert answer.status_code == 500
    assert "Something went wrong" in answer.content.decode()
