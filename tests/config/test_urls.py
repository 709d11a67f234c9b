"""Every address of the project, asked for by somebody it is not for: no server error, and nothing of anybody else's."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator
from functools import cache
from typing import Any
from zlib import crc32

import pytest
from django.test import Client
from django.test.client import ClientHandler
from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import RegexPattern, RoutePattern
from django.utils import timezone

from billing.api import views as api_base
from copilot.accounts import api_keys
from copilot.agents import services as agents
from copilot.api import authentication, schema_views
from copilot.files import services as files
from copilot.memories import services as memories
from copilot.models import Agent, McpServer, MemoryItem, Message, Question, Session, Share, WorkspaceFile
from copilot.sharing import access
from copilot.sharing import services as sharing
from copilot.sharing.drafts import ShareRequest
from copilot.sharing.services import ShareTerms
from copilot.tools.mcp import services as mcp
from tests.support import factories
from tests.support.rest_clients import NOBODYS, person, program

pytestmark = [pytest.mark.attack, pytest.mark.django_db]
CANARY = "canary-5b1f90"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

# Bodies nobody would send in good faith, each with what it says of itself.
BODIES = (
    (b"", "application/json"),
    (b"{", "application/json"),
    (b"[" * 20_000, "application/json"),
    (b'{"a":' * 5_000, "application/json"),
    (b'"\\ud800"', "application/json"),
    (b"null", "application/json; charset=nonsense"),
    (b"[1,2]", "application/json"),
    (
        b'{"text": "\\u0000", "name": {"a": []}, "password": [null], "ids": "x", "expires_in": 1e999}',
        "application/json",
    ),
    (b"9" * 5_000, "application/json"),
    (b"\xff\xfe\x00", "application/json; charset=utf-16"),
    (b"a=%ff%00&name=%00&text=" + b"x" * 5_000, "application/x-www-form-urlencoded"),
    (b"expected_version=" + b"9" * 5_000 + b"&inputs={&tools=%00", "application/x-www-form-urlencoded"),
    (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="\x00../a"\r\n\r\nx',
        "multipart/form-data; boundary=b",
    ),
    (b"x", "multipart/form-data"),
    (b"x", "nonsense/;;=\x7f"),
    (b"PK\x03\x04", "application/zip"),
)


# --- the addresses -----------------------------------------------------------------------------------


@cache
def templates() -> tuple[str, ...]:
    """Routes with their parameters in angle brackets, as Django knows them."""
    return tuple(dict.fromkeys(_walk(get_resolver().url_patterns, "")))


def _walk(patterns: list[URLPattern | URLResolver], before: str) -> Iterator[str]:
    for one in patterns:
        here = before + _route(one.pattern)
        if isinstance(one, URLResolver):
            yield from _walk(one.url_patterns, here)
        else:
            yield here


def _route(pattern: object) -> str:
    if isinstance(pattern, RoutePattern):
        return str(pattern._route)
    assert isinstance(pattern, RegexPattern), pattern
    text = str(pattern._regex).removeprefix("^").removesuffix("$").replace(r"\Z", "")
    return re.sub(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)", r"<str:\1>", text).replace("\\", "")


def filled(template: str, ids: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        kind, _, name = found[1].rpartition(":")
        return ids.get(name) or {"uuid": ids["session_id"], "int": "1", "slug": "a", "path": "1"}.get(
            kind, "1"
        )

    return "/" + re.sub(r"<([^<>]+)>", value, template)


def test_the_walk_finds_the_whole_project():
    found = set(templates())
    assert len(found) > 250
    assert {
        "chat/<uuid:session_id>/",
        "api/v1/sessions",
        "share/<uuid:token>",
        "v1/chat/completions",
    } <= found
    assert any(one.startswith("admin/") for one in found)
    assert any(one.startswith("accounts/") for one in found)
    assert any(one.startswith("hooks/") for one in found)


# --- what is Ada's -----------------------------------------------------------------------------------


@pytest.fixture
def adas() -> dict[str, str]:
    """Something of every kind, each with the canary in its words."""
    ada = factories.ada()
    session = factories.session(ada, title=CANARY)
    turn = factories.turn(session, "succeeded")
    message = factories.message(session, content=CANARY, turn=turn)
    factories.message(session, "assistant", content=f"```html\n{CANARY}\n```", turn=turn)
    file = files.store_file(ada.pk, name=f"{CANARY}.html", content=CANARY.encode(), source="upload")
    question = Question.objects.create(
        session=session, turn=turn, call_id="c1", question=CANARY, choices=[], deadline=timezone.now()
    )
    agent = agents.create_agent(ada.pk, agents.AgentDraft(name=CANARY, instructions=CANARY))
    share = sharing.publish_session(
        ada.pk, session.pk, ShareRequest(), ShareTerms(password="a long password")
    )
    return {
        "session_id": str(session.pk),
        "message_id": str(message.pk),
        "turn_id": str(turn.pk),
        "file_id": str(file.pk),
        "question_id": str(question.pk),
        "agent_id": str(agent.agent_id),
        "memory_id": str(memories.add_memory(ada.pk, CANARY).pk),
        "server_id": str(
            mcp.create_server(
                ada.pk, mcp.McpServerDraft(name="canary-5b1f90", url="https://93.184.216.34/")
            ).pk
        ),
        "key_id": str(api_keys.create_api_key(ada, name=CANARY).row.pk),
        "share_id": str(share.pk),
        "token": NOBODYS,
        "object_id": str(session.pk),
    }


@pytest.fixture(autouse=True)
def _without_limits(monkeypatch):
    """How often is another question."""
    monkeypatch.setattr(authentication, "CALLS_PER_MINUTE", 10**9)
    monkeypatch.setattr(schema_views, "READS_PER_MINUTE", 10**9)
    monkeypatch.setattr(access, "REQUESTS_PER_MINUTE", dict.fromkeys(access.REQUESTS_PER_MINUTE, 10**9))
    monkeypatch.setattr(api_base.BillingApiView, "reads_per_minute", 10**9)
    monkeypatch.setattr(api_base.BillingApiView, "writes_per_minute", 10**9)
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def state() -> list[list[Any]]:
    """Return everything that an unauthenticated request could have changed."""
    return [
        list(Session.objects.order_by("pk").values_list("pk", "title", "deleted_at")),
        list(Message.objects.order_by("pk").values_list("pk", "content", "hidden")),
        list(WorkspaceFile.objects.order_by("pk").values_list("pk", "name", "deleted_at")),
        list(Agent.objects.order_by("pk").values_list("pk", "name", "version", "deleted_at")),
        list(MemoryItem.objects.order_by("pk").values_list("pk", "text")),
        list(McpServer.objects.order_by("pk").values_list("pk", "name", "version")),
        list(Share.objects.order_by("pk").values_list("pk", "revoked_at", "password_version")),
    ]


# --- the walk ----------------------------------------------------------------------------------------


@cache
def _application() -> ClientHandler:
    return ClientHandler(enforce_csrf_checks=False)


def patient(client: Client) -> Client:
    """Errors become answers, as a server gives them; one application for all."""
    client.raise_request_exception = False
    client.handler = _application()
    return client


def problems_of(client: Client, asked: Iterator[tuple[str, str, tuple[bytes, str]]]) -> list[str]:
    found = []
    for method, path, (body, kind) in asked:
        content = {} if method == "GET" else {"data": body, "content_type": kind}
        response = client.generic(method, path, **content)
        shown = _read(response)
        if response.status_code >= 500 and response.status_code not in (501, 503):
            found.append(f"{method} {path} {kind} {body[:20]!r}: {response.status_code}")
        if CANARY.encode() in shown:
            found.append(f"{method} {path}: shows what is Ada's")
    return found


def _read(response) -> bytes:
    """What came; of a stream that only an event loop can read, nothing."""
    if not response.streaming:
        return bytes(response.content)
    return b"" if response.is_async else b"".join(response.streaming_content)


def every_address(ids: dict[str, str]) -> Iterator[tuple[str, str, tuple[bytes, str]]]:
    """Each address by each method with one body, another one for each."""
    for template, method in itertools.product(templates(), METHODS):
        if template.startswith("admin/") and method in ("PUT", "PATCH", "DELETE"):
            continue
        path = filled(template, ids)
        yield method, path, BODIES[crc32(f"{method}{template}".encode()) % len(BODIES)]


def every_body(ids: dict[str, str]) -> Iterator[tuple[str, str, tuple[bytes, str]]]:
    for template, method, body in itertools.product(templates(), ("POST", "PATCH"), BODIES):
        if not template.startswith("admin/"):
            yield method, filled(template, ids), body


def test_nobody_in_particular_gets_nothing_anywhere(adas):
    before = state()
    assert problems_of(patient(Client()), every_address(adas)) == []
    assert state() == before


def test_another_account_gets_nothing_of_anybody_elses_by_cookie(adas):
    before = state()
    assert problems_of(patient(person(factories.bob())), every_address(adas)) == []
    unchanged(before)


def test_another_account_gets_nothing_of_anybody_elses_by_key(adas):
    before = state()
    client = patient(program(factories.bob(), *api_keys.DEFAULT_SCOPES))
    programs = (one for one in every_address(adas) if one[1].startswith(("/api/", "/v1/")))
    assert problems_of(client, programs) == []
    unchanged(before)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["nobody", "bob by cookie", "bob by key", "ada by cookie"])
def test_no_body_is_a_server_error_at_any_address(adas, who):
    clients = {
        "nobody": Client,
        "bob by cookie": lambda: person(factories.bob()),
        "bob by key": lambda: program(factories.bob(), *api_keys.DEFAULT_SCOPES),
        "ada by cookie": lambda: person(factories.ada()),
    }
    found = problems_of(patient(clients[who]()), every_body(adas))
    assert [one for one in found if who != "ada by cookie" or "shows" not in one] == []


def unchanged(before: list[list[Any]]) -> None:
    """Whatever was there is as it was; Bob may have made things of his own."""
    for old, new in zip(before, state(), strict=True):
        assert set(map(str, old)) <= set(map(str, new))
