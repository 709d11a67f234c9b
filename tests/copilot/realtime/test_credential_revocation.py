"""What was opened with a login or a key ends with it, within two seconds, by whichever road it was revoked."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import httpx
import pytest
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as Login
from django.test import Client
from django.utils import timezone

from config.core.db import run_in_thread
from copilot.accounts import api_keys, deletion
from copilot.models import ApiKey, Turn
from copilot.providers.scripted import ScriptedHang, ScriptedText
from copilot.realtime import authentication, connections
from copilot.realtime.connections import (
    CONNECTION_REGISTRY,
    ConnectionCredential,
    digest_password_hash,
    list_revoked_credentials,
)
from copilot.routing import websocket_router
from tests.support import factories
from tests.support.asgi_server import served
from tests.support.rest_clients import V1, opened, person, signed_in
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import until
from tests.support.waiting_requests import list_waiting_requests
from tests.support.websocket_client import closes, connected

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.attack]


@pytest.fixture
def ada():
    return factories.ada()


def test_revocations_are_looked_for_often_enough():
    assert connections.REVOCATION_CHECK_SECONDS <= 1.0


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(connections, "REVOCATION_CHECK_SECONDS", 0.05)


# --- sockets -----------------------------------------------------------------------------------------


@dataclass
class Browser:
    """A login, and what it opened."""

    user: User
    cookie: str = ""
    client: Client = field(default_factory=Client)

    @classmethod
    def of(cls, user: User) -> Browser:
        browser = cls(user, client=person(user))
        browser.cookie = browser.client.cookies["sessionid"].value
        return browser

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"cookie", f"sessionid={self.cookie}".encode())]

    def ticket(self) -> str:
        return str(self.client.post(f"{V1}/ws-tickets", {}, content_type="application/json").json()["ticket"])

    @asynccontextmanager
    async def sockets(self):
        """One by the cookie, one by a ticket."""
        ticket = await run_in_thread(self.ticket)
        async with (
            connected(self.user, headers=self.headers) as first,
            connected(self.user, query=f"?ticket={ticket}") as second,
        ):
            yield first, second


async def codes(*opened_sockets) -> list[int]:
    return [await closes(socket.wire) for socket in opened_sockets]


async def is_alive(socket) -> bool:
    return (await socket.ask("ping"))["kind"] == "ack"


async def test_logging_out_ends_the_sockets_of_that_browser_alone(ada, soon):
    here, there = await run_in_thread(Browser.of, ada), await run_in_thread(Browser.of, ada)
    async with here.sockets() as mine, there.sockets() as others:
        await run_in_thread(here.client.logout)
        assert await codes(*mine) == [4401, 4401]
        assert [await is_alive(socket) for socket in others] == [True, True]


async def test_a_new_password_ends_the_sockets_of_other_logins_and_those_of_keys_go_on(ada, soon):
    """The browser that changed it has a new cookie: its page comes back with that."""
    here, there = await run_in_thread(Browser.of, ada), await run_in_thread(Browser.of, ada)
    key = await run_in_thread(api_keys.create_api_key, ada)
    bearer = [(b"authorization", f"Bearer {key.token}".encode())]
    async with there.sockets() as others, connected(ada, headers=bearer) as by_key:
        await run_in_thread(_change_password, here)
        assert await codes(*others) == [4401, 4401]
        assert await is_alive(by_key)
        here.cookie = here.client.cookies["sessionid"].value
        async with connected(ada, headers=here.headers) as again:
            assert await is_alive(again)


def _change_password(browser: Browser) -> None:
    from django.contrib.auth import update_session_auth_hash
    from django.test import RequestFactory

    request = RequestFactory().get("/")
    request.session, request.user = browser.client.session, browser.user
    browser.user.set_password("a new one, longer")
    browser.user.save()
    update_session_auth_hash(request, browser.user)
    request.session.save()
    browser.client.cookies["sessionid"] = str(request.session.session_key)


def _expire(row: ApiKey) -> None:
    ApiKey.objects.filter(pk=row.pk).update(expires_at=timezone.now())


REVOCATIONS = {
    "revoked": lambda ada, key: api_keys.revoke_api_key(ada.pk, key.pk),
    "expired": lambda ada, key: _expire(key),
    "deleted": lambda ada, key: ApiKey.objects.all().delete(),
    "deactivated": lambda ada, key: User.objects.filter(pk=ada.pk).update(is_active=False),
    "erased": lambda ada, key: deletion.request_deletion(ada),
}


@pytest.mark.parametrize("act", REVOCATIONS.values(), ids=REVOCATIONS)
async def test_a_key_takes_its_sockets_and_tickets_with_it(ada, act, soon):
    bob = await run_in_thread(factories.bob)
    key = await run_in_thread(api_keys.create_api_key, ada)
    bearer = [(b"authorization", f"Bearer {key.token}".encode())]
    proof = ConnectionCredential(ada.pk, key_id=key.row.pk).proof
    used, unused = [await run_in_thread(authentication.issue_ticket, ada.pk, None, proof) for _ in range(2)]
    async with AsyncExitStack() as stack:
        by_key = await stack.enter_async_context(connected(ada, headers=bearer))
        by_ticket = await stack.enter_async_context(connected(ada, query=f"?ticket={used}"))
        his = await stack.enter_async_context(connected(bob))
        await run_in_thread(act, ada, key.row)
        assert await codes(by_key, by_ticket) == [4401, 4401]
        assert await is_alive(his)
    wire = WebsocketCommunicator(
        websocket_router, f"/ws/?ticket={unused}", headers=[(b"host", b"testserver")]
    )
    await wire.connect(timeout=PATIENCE_SECONDS)
    assert await closes(wire) == 4401


async def test_a_ticket_is_worth_no_more_than_the_login_it_was_bought_with(ada):
    browser = await run_in_thread(Browser.of, ada)
    ticket = await run_in_thread(browser.ticket)
    await run_in_thread(browser.client.logout)
    wire = WebsocketCommunicator(
        websocket_router, f"/ws/?ticket={ticket}", headers=[(b"host", b"testserver")]
    )
    await wire.connect(timeout=PATIENCE_SECONDS)
    assert await closes(wire) == 4401


async def test_a_database_that_is_down_ends_no_socket(ada, soon, monkeypatch):
    from django.db import OperationalError

    browser = await run_in_thread(Browser.of, ada)
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def away(credentials):
        loop.call_soon_threadsafe(asked.set)
        raise OperationalError

    async with browser.sockets() as (socket, _):
        with monkeypatch.context() as outage:
            outage.setitem(connections._revocation_checks, ConnectionCredential, away)
            await asyncio.wait_for(asked.wait(), PATIENCE_SECONDS)
        assert await is_alive(socket)
        await run_in_thread(browser.client.logout)
        assert await codes(socket) == [4401]


# --- streams -----------------------------------------------------------------------------------------


async def test_an_event_stream_says_that_it_ends(ada, soon):
    session = await run_in_thread(factories.session, ada)
    path = f"{V1}/sessions/{session.pk}/stream"
    key = await run_in_thread(api_keys.create_api_key, ada)
    async with opened(path, key.token) as stream:
        await stream.frame()
        await run_in_thread(api_keys.revoke_api_key, ada.pk, key.row.pk)
        assert (await stream.until("closed"))[-1].event == "closed"
        await stream.call.wait(timeout=PATIENCE_SECONDS)


def test_an_event_stream_of_a_browser_ends_when_it_logs_out(ada, site, soon):
    browser = Browser.of(ada)
    path = f"{site}{V1}/sessions/{factories.session(ada).pk}/stream"
    with httpx.stream("GET", path, headers={"Cookie": f"sessionid={browser.cookie}"}) as stream:
        lines = stream.iter_lines()
        assert "session.snapshot" in next(line for line in lines if line.startswith("event"))
        browser.client.logout()
        assert [line for line in lines if line.startswith("event")] == ["event: closed"]


@pytest.fixture
def site():
    """Of one test each: the others have an event loop of their own, and the process one reader of the log."""
    with served() as address:
        yield address


@pytest.mark.parametrize("way", ["wait", "completion", "response", "AI SDK", "unstreamed completion"])
def test_requests_that_wait_for_an_answer_end_when_their_key_is_revoked(rig, model, site, soon, way):
    """In the midst of a stream it is told by a last frame; before it, by 401."""
    ada = factories.ada()
    model.will(ScriptedText("Well"), ScriptedHang())
    key = api_keys.create_api_key(ada)
    session = factories.session(ada)
    turn = factories.turn(session, "running")
    method, path, body = list_waiting_requests(session, turn).get(
        way,
        ("POST", "/v1/chat/completions", {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}),
    )
    told: list[str] = []

    def call() -> None:
        headers = {"Authorization": f"Bearer {key.token}"}
        answer = httpx.request(method, f"{site}{path}", json=body, headers=headers, timeout=PATIENCE_SECONDS)
        told.append(f"{answer.status_code} {answer.text}")

    caller = threading.Thread(target=call)
    caller.start()
    until(lambda: CONNECTION_REGISTRY._held)
    if way != "wait":
        until(lambda: Turn.objects.filter(status="running").exclude(pk=turn.pk).exists())
    api_keys.revoke_api_key(ada.pk, key.row.pk)
    caller.join(PATIENCE_SECONDS)
    [answer] = told
    if way in ("wait", "unstreamed completion"):
        assert answer.startswith("401 ")
    else:
        assert answer.startswith("200 ")
        assert "Send a valid API key" in answer
    until(lambda: not CONNECTION_REGISTRY._held)


# --- the question itself -----------------------------------------------------------------------------


def test_each_credential_is_checked_separately(ada):
    """One statement for all of a process."""
    cookie = signed_in(ada)
    key = api_keys.create_api_key(ada).row
    digest = digest_password_hash(User.objects.get(pk=ada.pk).password)
    stale = signed_in(ada)
    Login.objects.filter(pk=stale).update(expire_date=timezone.now() - timedelta(seconds=1))
    bob = factories.bob()
    standing = [
        ConnectionCredential(ada.pk),
        ConnectionCredential(ada.pk, key_id=key.pk),
        ConnectionCredential(ada.pk, session_key=cookie, password_digest=digest),
        ConnectionCredential(bob.pk),
    ]
    revoked = [
        ConnectionCredential(bob.pk, key_id=key.pk),
        ConnectionCredential(ada.pk, session_key=cookie, password_digest="0" * 16),
        ConnectionCredential(ada.pk, session_key=stale, password_digest=digest),
        ConnectionCredential(ada.pk, session_key="nonsense", password_digest=digest),
        ConnectionCredential(10**9),
    ]
    assert list_revoked_credentials(standing) == []
    mixed = [one for pair in zip(standing + standing, revoked, strict=False) for one in pair]
    assert set(list_revoked_credentials(mixed)) == set(revoked)


@pytest.mark.slow
def test_ten_thousand_credentials_are_one_quick_question(ada):
    """Its cost grows with their number and no faster; at 10,000 it is a few hundredths of a second each second."""
    users = User.objects.bulk_create(
        [User(username=f"user{number}", password="x" * 88) for number in range(10_000)]
    )
    logins = [
        Login(session_key=f"s{user.pk}", session_data="", expire_date=timezone.now() + timedelta(1))
        for user in users
    ]
    Login.objects.bulk_create(logins)
    digest = digest_password_hash("x" * 88)
    held = [
        ConnectionCredential(user.pk, session_key=f"s{user.pk}", password_digest=digest) for user in users
    ]

    def seconds(count: int) -> float:
        began = time.perf_counter()
        assert list_revoked_credentials(held[:count]) == []
        return time.perf_counter() - began

    seconds(10_000)
    few, many = min(seconds(1_000) for _ in range(5)), min(seconds(10_000) for _ in range(5))
    print(f"1,000: {few * 1000:.1f} ms, 10,000: {many * 1000:.1f} ms")
    assert many < 30 * few
