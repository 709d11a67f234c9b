"""Who is believed about where a request comes from and what it is called; every answer says the latter (D19)."""

from __future__ import annotations

import re

import pytest
from asgiref.testing import ApplicationCommunicator

from config.asgi import application
from config.http.handler import RequestHeadersMiddleware

PROXY, STRANGER = "10.0.0.2", "203.0.113.9"
SAID = {
    "x-request-id": "from-proxy-1",
    "x-forwarded-for": "198.51.100.7",
    "x-forwarded-proto": "https",
    "traceparent": "00-1-2-01",
}


async def inner(scope, receive, send):
    """Answers with what arrived."""
    seen = {name: value for name, value in scope["headers"] if name.decode() in SAID}
    place = [(b"x-client", scope["client"][0].encode()), (b"x-scheme", scope["scheme"].encode())]
    headers = [*place, *((b"x-seen-" + name, value) for name, value in seen.items())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def ask(door, path="/", *, peer=STRANGER, said=SAID, **more):
    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "client": (peer, 4711),
        "headers": [(name.encode(), value.encode()) for name, value in said.items()],
        **more,
    }
    asked = ApplicationCommunicator(door, scope)
    await asked.send_input({"type": "http.request", "body": b"", "more_body": False})
    start = await asked.receive_output(20)
    await asked.wait(20)  # until whatever it opened is closed
    headers = [(name.decode(), value.decode()) for name, value in start["headers"]]
    assert [name for name, _ in headers].count("x-request-id") == 1
    return start["status"], dict(headers)


@pytest.mark.parametrize("proxies", [PROXY, "10.0.0.0/8", "192.0.2.1, 10.0.0.2", "*"])
async def test_a_proxy_of_ours_is_believed(proxies: str):
    _, told = await ask(RequestHeadersMiddleware(inner, proxies=proxies), peer=PROXY)
    assert told["x-request-id"] == told["x-seen-x-request-id"] == "from-proxy-1"
    assert (told["x-client"], told["x-scheme"]) == ("198.51.100.7", "https")
    assert told["x-seen-traceparent"] == "00-1-2-01"


@pytest.mark.parametrize("proxies", ["", PROXY])
async def test_a_request_cannot_choose_what_our_logs_say(proxies: str):
    """D19: accepted only from trusted proxies, even if others reach the port"""
    _, told = await ask(RequestHeadersMiddleware(inner, proxies=proxies))
    assert re.fullmatch("[0-9a-f]{32}", told["x-request-id"])
    assert told["x-seen-x-request-id"] == told["x-request-id"]
    assert (told["x-client"], told["x-scheme"]) == (STRANGER, "http")
    assert {name for name in told if name.startswith("x-seen-")} == {"x-seen-x-request-id"}


@pytest.mark.parametrize("name", ["short-1", "x" * 65, "bad id\n1", "snow☃man-1", "", "a" * 8 + "\n"])
async def test_a_name_of_another_form_is_replaced(name: str):
    """D19: `^[A-Za-z0-9-]{8,64}$`, otherwise generated"""
    _, told = await ask(RequestHeadersMiddleware(inner, proxies="*"), said={"x-request-id": name})
    assert re.fullmatch("[0-9a-f]{32}", told["x-request-id"])


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/static/images/logo.svg", {}, 200),
        ("/healthz", {}, 200),
        ("/api/v1/sessions", {"content-length": "99999999999"}, 413),
    ],
)
async def test_every_answer_bears_an_id(path: str, headers: dict[str, str], status: int):
    """D19: always echoed: a file, a view, a body refused before it arrives"""
    got, told = await ask(application, path, said={"host": "testserver", **headers})
    assert got == status
    assert re.fullmatch("[0-9a-f]{32}", told["x-request-id"])


async def test_other_protocols_pass():
    seen = []

    async def sockets(scope, receive, send):
        seen.append(scope)

    door = RequestHeadersMiddleware(sockets, proxies="")
    await door({"type": "lifespan"}, None, None)
    headers = [(b"x-forwarded-for", b"1.2.3.4"), (b"cookie", b"a=b")]
    await door({"type": "websocket", "client": None, "headers": headers}, None, None)
    assert [one["type"] for one in seen] == ["lifespan", "websocket"]
    assert seen[1]["headers"] == [(b"cookie", b"a=b")]


@pytest.mark.attack
@pytest.mark.parametrize(
    ("more", "said", "status"),
    [
        ({}, {"x": "a" * 33_000}, 431),
        ({}, {f"x-{number}": "a" * 100 for number in range(400)}, 431),
        ({}, {"cookie": 'a="' + "\\" * 401 + '"'}, 431),
        ({"query_string": b"a" * 17_000}, {}, 414),
        ({"raw_path": b"/" + b"a" * 17_000}, {}, 414),
        ({"query_string": b"a" * 8_000}, {"cookie": 'a="' + "\\054" * 400 + '"', "x": "a" * 20_000}, 200),
    ],
)
async def test_a_head_that_costs_too_much_is_refused_before_anything_reads_it(more, said, status):
    reached = []

    async def counted(scope, receive, send):
        reached.append(scope)
        await inner(scope, receive, send)

    assert (await ask(RequestHeadersMiddleware(counted, proxies=""), said=said, **more))[0] == status
    assert bool(reached) is (status == 200)


@pytest.mark.attack
async def test_a_socket_with_such_a_head_is_closed_unopened():
    scope = {"type": "websocket", "path": "/ws", "query_string": b"", "client": (STRANGER, 1)}
    asked = ApplicationCommunicator(
        RequestHeadersMiddleware(inner, proxies=""), scope | {"headers": [(b"x", b"a" * 33_000)]}
    )
    assert (await asked.receive_output(20))["type"] == "websocket.close"
