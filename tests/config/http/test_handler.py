"""A request whose view is synchronous crosses to a thread once; one that waits stays on the loop (P17, S21)."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from asgiref.testing import ApplicationCommunicator
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import override_settings
from django.urls import path

from config.http import handler
from config.http.handler import SingleHopASGIHandler

pytestmark = pytest.mark.django_db(transaction=True)


def at_once(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"thread": threading.get_ident(), "before": request.META["seen"]})


async def waiting(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    return JsonResponse({"thread": threading.get_ident()})


def broken(request: HttpRequest) -> HttpResponse:
    raise KeyError("x")


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    return HttpResponse(status=404)


def handler500(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=500)


def knocked(request: HttpRequest, platform: str, slug: str) -> HttpResponse:
    return JsonResponse({"seen": "seen" in request.META, "user": hasattr(request, "user")})


urlpatterns = [
    path("hooks/<slug:platform>/<slug:slug>/", knocked),
    path("at-once", at_once),
    path("waiting", waiting),
    path("broken", broken),
]


def seeing(get_response):
    """A middleware of the old kind: it knows no event loop."""

    def handle(request):
        request.META["seen"] = threading.get_ident()
        response = get_response(request)
        response.headers["X-Seen"] = "yes"
        return response

    return handle


class Door:
    """One request after the other, with the crossings each of them made."""

    def __init__(self, monkeypatch) -> None:
        self.crossings: list[str] = []
        submit = handler.RequestExecutor.submit

        def counted(lane, fn, /, *args, **kwargs):
            self.crossings.append(threading.current_thread().name)
            return submit(lane, fn, *args, **kwargs)

        monkeypatch.setattr(handler.RequestExecutor, "submit", counted)
        with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[f"{__name__}.seeing"] * 3):
            self.application = handler.ThreadPoolMiddleware(SingleHopASGIHandler())

    def get(self, where: str) -> tuple[int, dict[bytes, bytes], bytes]:
        self.crossings.clear()
        return asyncio.run(self._get(where))

    async def _get(self, where: str) -> tuple[int, dict[bytes, bytes], bytes]:
        scope = {"type": "http", "method": "GET", "path": where, "headers": [], "query_string": b""}
        with override_settings(ROOT_URLCONF=__name__):
            talk = ApplicationCommunicator(self.application, scope)
            await talk.send_input({"type": "http.request", "body": b""})
            begun = await talk.receive_output(20)
            body = await talk.receive_output(20)
            await talk.wait(20)
        return begun["status"], dict(begun["headers"]), body["body"]


@pytest.fixture
def door(monkeypatch) -> Door:
    return Door(monkeypatch)


def test_middleware_and_view_share_one_crossing(door):
    """Django's own signal crosses after it: two in all, whatever the number of middlewares."""
    status, headers, body = door.get("/at-once")
    told = json.loads(body)
    assert (status, headers[b"X-Seen"]) == (200, b"yes")
    assert told["thread"] == told["before"] != threading.get_ident()
    assert len(door.crossings) == 2


def test_a_view_that_waits_stays_on_the_loop(door):
    status, headers, body = door.get("/waiting")
    assert (status, headers[b"X-Seen"]) == (200, b"yes")
    assert json.loads(body)["thread"] == threading.get_ident()


def test_what_is_not_there_and_what_breaks_is_answered_as_ever(door, caplog):
    assert door.get("/nowhere")[0] == 404
    assert door.get("/broken")[0] == 500


def test_a_platforms_update_passes_by_what_serves_people(door, caplog):
    """L18: no cookie is read; it has a line in the log, and what is not there is not found, as everywhere"""
    caplog.set_level("INFO", logger="http")
    status, headers, body = door.get("/hooks/telegram/abc/")
    assert (status, json.loads(body)) == (200, {"seen": False, "user": False})
    assert b"X-Seen" not in headers
    assert len(door.crossings) == 2
    assert door.get("/hooks/nowhere")[0] == 404
    assert [record.name for record in caplog.records].count("http") == 2
