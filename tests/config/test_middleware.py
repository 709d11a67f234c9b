"""The wire's error form for what no view answers (E3)."""

from __future__ import annotations

import json

import pytest
from django.http import HttpResponse, JsonResponse
from django.test import Client, RequestFactory

from config.middleware import api_errors

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "not_found"), (403, "forbidden"), (400, "invalid_request"), (500, "internal_error")],
)
def test_a_page_of_error_below_api_takes_the_wires_form(rf: RequestFactory, status: int, code: str):
    answer = api_errors(lambda _request: HttpResponse("<h1>Oops</h1>", status=status))
    response = answer(rf.get("/api/v1/anything"))
    assert isinstance(response, HttpResponse)
    assert response.status_code == status
    assert json.loads(response.content)["error"]["code"] == code


def test_an_answer_that_has_the_form_already_is_left_alone(rf: RequestFactory):
    answer = api_errors(lambda _request: JsonResponse({"error": {"code": "queue_full"}}, status=429))
    response = answer(rf.get("/api/v1/anything"))
    assert isinstance(response, HttpResponse)
    assert json.loads(response.content)["error"]["code"] == "queue_full"


def test_an_unknown_page_stays_a_page(client: Client):
    response = client.get("/no-such-page")
    assert response.status_code == 404
    assert response["Content-Type"].startswith("text/html")
