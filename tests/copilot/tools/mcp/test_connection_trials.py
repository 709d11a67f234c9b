"""Trials of MCP servers that do not answer: no request waits for them, and they are few and end in time."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import pytest
from django.contrib.auth.models import User
from django.db import connection

from config.core import db, url_safety
from config.http import handler
from copilot.accounts import api_keys
from copilot.models import McpServer
from copilot.tools.mcp import connection_trials, server_connection
from copilot.tools.mcp import services as mcp
from linking.webhook_deliveries import sender
from linking.webhook_deliveries.http_client import DeliveryClient
from tests.support import factories, mcp_servers
from tests.support.asgi_server import served
from tests.support.paths import ROOT
from tests.support.rest_clients import V1, person, signed_in
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.attack]
CSRF_TOKEN = "c" * 32


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served() as address:
        yield address


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process has a single thread for requests: whatever holds it is noticed by everybody."""
    pool = db.LifoThreadPool(1, "single")
    monkeypatch.setattr(handler, "_web_threads", pool)
    yield
    pool.submit(lambda: connection.close()).result(PATIENCE_SECONDS)
    pool.shutdown()


class HangingResolver:
    """Answer no question about names below slow.example until the test lets it."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.answering = threading.Event()
        self._real = socket.getaddrinfo

    def __call__(self, host: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if not name.endswith("slow.example"):
            return self._real(host, *args, **options)
        self.asked.release()
        assert self.answering.wait(PATIENCE_SECONDS)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    def wait_until_asked(self, times: int) -> None:
        for _ in range(times):
            assert self.asked.acquire(timeout=PATIENCE_SECONDS)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingResolver]:
    hanging = HangingResolver()
    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    # How long a trial may last is another test's question; here nothing ends it but an answer.
    monkeypatch.setattr(server_connection, "CONNECT_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(connection_trials, "TRIAL_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    yield hanging
    hanging.answering.set()
    until(lambda: not connection_trials._running_trials._by_account)


class Caller:
    """One account with a server whose name is not answered."""

    def __init__(self, site: str, user: User) -> None:
        token = api_keys.create_api_key(user, scopes=("read", "manage")).token
        self.user = user
        self.row = mcp.create_server(
            user.pk, mcp.McpServerDraft(name="mine", url=f"https://{user.username}.slow.example/")
        )
        self.path = f"{V1}/mcp-servers/{self.row.pk}/test"
        self.client = httpx.Client(
            base_url=site, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_SECONDS
        )

    def test(self) -> httpx.Response:
        return self.client.post(self.path)


def callers(site: str, number: int) -> list[Caller]:
    return [Caller(site, factories.user(f"user{n}")) for n in range(number)]


def hang_all(
    pool: ThreadPoolExecutor, resolver: HangingResolver, accounts: list[Caller]
) -> list[Future[httpx.Response]]:
    """Start as many trials as each account may have; all of them wait for their names then."""
    trials = [
        pool.submit(one.test) for one in accounts for _ in range(connection_trials.MAX_CONCURRENT_PER_ACCOUNT)
    ]
    resolver.wait_until_asked(len(trials))
    return trials


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_hanging_trials_delay_no_other_request_and_are_limited(
    site: str, one_thread: None, resolver: HangingResolver
) -> None:
    *accounts, late = callers(
        site, connection_trials.MAX_CONCURRENT_TRIALS // connection_trials.MAX_CONCURRENT_PER_ACCOUNT + 1
    )
    cookies = {"sessionid": signed_in(late.user)}
    with ThreadPoolExecutor(connection_trials.MAX_CONCURRENT_TRIALS) as pool:
        trials = hang_all(pool, resolver, accounts)

        assert late.client.get(f"{V1}/mcp-servers").status_code == 200
        page = httpx.get(f"{site}/settings/mcp/", cookies=cookies, timeout=PATIENCE_SECONDS)
        assert page.status_code == 200
        assert late.row.url in page.text

        refused = accounts[0].test()
        assert error_of(refused) == (429, "too_many_trials")
        assert int(refused.headers["Retry-After"]) > 0
        assert error_of(late.test()) == (429, "too_many_trials")
        assert not any(trial.done() for trial in trials)

        resolver.answering.set()
        answers = [trial.result(PATIENCE_SECONDS).json() for trial in trials]
    assert {(one["ok"], bool(one["error"])) for one in answers} == {(False, True)}
    assert [one.test().status_code for one in (accounts[0], late)] == [200, 200]


def test_a_trial_on_the_page_holds_no_request_thread(
    site: str, one_thread: None, resolver: HangingResolver
) -> None:
    [ada] = callers(site, 1)
    client = httpx.Client(
        base_url=site,
        cookies={"sessionid": signed_in(ada.user), "csrftoken": CSRF_TOKEN},
        headers={"X-CSRFToken": CSRF_TOKEN},
        timeout=PATIENCE_SECONDS,
    )
    with ThreadPoolExecutor(1) as pool:
        trial = pool.submit(client.post, f"/settings/mcp/{ada.row.pk}/test/")
        resolver.wait_until_asked(1)
        assert ada.client.get(f"{V1}/mcp-servers").status_code == 200
        assert not trial.done()
        resolver.answering.set()
        assert trial.result(PATIENCE_SECONDS).status_code == 302


def test_a_trial_in_the_admin_holds_no_request_thread(
    site: str, one_thread: None, resolver: HangingResolver
) -> None:
    [ada] = callers(site, 1)
    grace = User.objects.create_superuser("grace", "grace@example.org", "x")
    row = mcp.create_server(None, mcp.McpServerDraft(name="all", url="https://all.slow.example/"))
    client = httpx.Client(
        base_url=site,
        cookies={"sessionid": signed_in(grace), "csrftoken": CSRF_TOKEN},
        headers={"X-CSRFToken": CSRF_TOKEN},
        timeout=PATIENCE_SECONDS,
        follow_redirects=True,
    )
    form = {"action": "test_connection", "_selected_action": str(row.pk)}
    with ThreadPoolExecutor(1) as pool:
        trial = pool.submit(client.post, "/admin/copilot/mcpserver/", data=form)
        resolver.wait_until_asked(1)
        assert ada.client.get(f"{V1}/mcp-servers").status_code == 200
        assert not trial.done()
        resolver.answering.set()
        assert "MCP server all: It could not be reached." in trial.result(PATIENCE_SECONDS).text


def test_servers_with_slow_names_are_saved_at_once(
    site: str, one_thread: None, resolver: HangingResolver
) -> None:
    [ada] = callers(site, 1)
    body = {"name": "other", "url": "https://other.slow.example/"}
    assert ada.client.post(f"{V1}/mcp-servers", json=body).status_code == 201
    assert not resolver.asked.acquire(blocking=False)


def test_a_client_that_leaves_ends_its_trial_and_the_server_is_not_blamed(
    site: str, one_thread: None, resolver: HangingResolver
) -> None:
    [ada] = callers(site, 1)
    host, port = site.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        headers = f"Host: {host}\r\nAuthorization: {ada.client.headers['Authorization']}\r\nContent-Length: 0"
        client.sendall(f"POST {ada.path} HTTP/1.1\r\n{headers}\r\n\r\n".encode())
        resolver.wait_until_asked(1)
    until(lambda: not connection_trials._running_trials._by_account)
    assert not resolver.answering.is_set()
    assert McpServer.objects.get(pk=ada.row.pk).failures == 0


def test_a_server_that_never_answers_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_trials, "TRIAL_TIMEOUT_SECONDS", 0.2)
    ada = factories.ada()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        mcp_servers.may_reach(monkeypatch, port)
        row = mcp_servers.users(ada, "mine", mcp_servers.url(port))
        tried = person(ada).post(f"{V1}/mcp-servers/{row.pk}/test").json()
    assert (tried["ok"], tried["error"]) == (False, server_connection.TIMEOUT_MESSAGE)
    assert not connection_trials._running_trials._by_account


def test_a_server_that_connects_too_slowly_is_given_up_by_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_connection, "CONNECT_TIMEOUT_SECONDS", 0.2)
    ada = factories.ada()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        mcp_servers.may_reach(monkeypatch, port)
        row = mcp_servers.users(ada, "mine", mcp_servers.url(port))
        tried = person(ada).post(f"{V1}/mcp-servers/{row.pk}/test").json()
    assert (tried["ok"], tried["error"]) == (False, server_connection.TIMEOUT_MESSAGE)
    row.refresh_from_db()
    assert row.last_error == server_connection.TIMEOUT_MESSAGE


def test_a_name_that_leads_to_a_private_address_is_refused_by_the_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A28.c2: every address counts"""
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))
        for address in ("93.184.216.34", "10.0.0.1")
    ]
    monkeypatch.setattr(url_safety, "_get_address_info", lambda *given: found)
    ada = factories.ada()
    row = mcp.create_server(ada.pk, mcp.McpServerDraft(name="mine", url="https://mcp.example/"))
    tried = person(ada).post(f"{V1}/mcp-servers/{row.pk}/test").json()
    assert tried["error"] == "Only public addresses of the internet are reached."


class RecordedLookups(url_safety.LookupThreads):
    """Remember whose look-ups were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: set[str] = set()

    def submit(self, owner: str, look_up: Any) -> Any:
        self.owners.add(owner)
        return super().submit(owner, look_up)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> RecordedLookups:
    recorded = RecordedLookups()
    monkeypatch.setattr(url_safety, "_lookups", recorded)
    monkeypatch.setattr(
        url_safety,
        "_get_address_info",
        lambda *given: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 443))],
    )
    return recorded


def test_look_ups_of_servers_count_as_their_owners(lookups: RecordedLookups) -> None:
    ada = factories.ada()
    row = mcp.create_server(ada.pk, mcp.McpServerDraft(name="mine", url="https://mcp.example/"))
    assert not person(ada).post(f"{V1}/mcp-servers/{row.pk}/test").json()["ok"]
    assert lookups.owners == {f"user:{ada.pk}"}


def test_look_ups_of_deliveries_count_as_their_endpoints(lookups: RecordedLookups) -> None:
    endpoint_id = uuid4()
    due = sender._ClaimedDelivery(
        delivery_id=uuid4(),
        endpoint_id=endpoint_id,
        attempts=1,
        url="https://hooks.example/",
        body=b"{}",
        secrets=["s"],
    )
    [posted] = asyncio.run(sender._post_batch([due], DeliveryClient()))
    assert posted.error == "address_refused"
    assert lookups.owners == {f"endpoint:{endpoint_id}"}


def test_trials_are_counted_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_trials, "MAX_TRIALS_PER_MINUTE", 1)
    monkeypatch.setattr(url_safety, "_get_address_info", lambda *given: [])
    ada = factories.ada()
    row = mcp.create_server(ada.pk, mcp.McpServerDraft(name="mine", url="https://mcp.example/"))
    answers = [person(ada).post(f"{V1}/mcp-servers/{row.pk}/test") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].json()["error"]["code"] == "too_many_trials"


def test_only_staff_with_the_right_to_change_servers_may_try_everybodys() -> None:
    row = mcp.create_server(None, mcp.McpServerDraft(name="all", url="http://10.0.0.1/mcp"))
    form = {"_selected_action": str(row.pk)}
    clerk = User.objects.create_user("clerk", "clerk@example.org", "x", is_staff=True)
    for user in (factories.ada(), clerk):
        assert person(user).post("/admin/copilot/mcpserver/test-connection/", form).status_code == 403
    grace = User.objects.create_superuser("grace", "grace@example.org", "x")
    assert person(grace).get("/admin/copilot/mcpserver/test-connection/").status_code == 403
    assert McpServer.objects.get().failures == 0


def test_names_are_looked_up_in_two_places_alone() -> None:
    """A look-up done elsewhere may happen in a request"""
    apps = ("billing", "config", "copilot", "diagnostics", "linking")
    sources = [path for app in apps for path in (ROOT / app).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in sources if "socket.getaddrinfo(" in path.read_text()}
    assert found == {"config/core/url_safety.py", "diagnostics/audit_delivery.py"}
