"""Health endpoints: alive touches nothing, ready asks the servers it needs (D15)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest
import uvicorn
from asgiref.sync import sync_to_async
from django.db import connection
from django.test import AsyncClient

from config.core import redis
from config.dev.servers import find_free_port
from config.http import web_server
from diagnostics import views
from diagnostics.probes import runner, servers
from tests.support import factories
from tests.support.paths import ROOT
from tests.support.race_repeats import rounds
from tests.support.timeouts import PATIENCE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "READINESS_CACHE", views._ReadinessCache())


@pytest.fixture
def no_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    """For probes, which open new connections; existing ones stay."""
    monkeypatch.setitem(connection.settings_dict, "PORT", find_free_port())


@pytest.fixture(autouse=True, scope="module")
def _migrations_are_known():
    """Reading them from disk takes a second on a busy machine, once in a process's life."""
    servers._list_migrations()


@pytest.fixture
def no_redis(settings):
    settings.REDIS_URL = f"redis://:very-secret@127.0.0.1:{find_free_port()}/0"
    redis.get_redis.cache_clear()
    yield
    redis.get_redis.cache_clear()


async def test_healthz_answers_with_every_server_down_d15(async_client: AsyncClient, no_postgres, no_redis):
    response = await async_client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    assert "sessionid" not in response.cookies


async def test_readyz_is_well_when_everything_is(async_client: AsyncClient):
    response = await async_client.get("/readyz")
    assert (response.status_code, response.json()) == (200, {"status": "ok", "failed": []})


async def test_readyz_names_postgres_when_it_is_down_a_d15_1(async_client: AsyncClient, no_postgres):
    response = await async_client.get("/readyz")
    assert response.status_code == 503
    assert response.json() == {"status": "unavailable", "failed": ["postgres"]}
    assert (await async_client.get("/healthz")).status_code == 200


async def test_readyz_names_redis_when_it_is_down(async_client: AsyncClient, no_redis):
    response = await async_client.get("/readyz")
    assert (response.status_code, response.json()["failed"]) == (503, ["redis"])
    assert b"very-secret" not in response.content


async def test_a_draining_process_is_not_ready_a_d15_2(
    async_client: AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner, "_draining", type(runner._draining)())
    runner.start_draining()
    response = await async_client.get("/readyz")
    assert (response.status_code, response.json()["failed"]) == (503, ["draining"])


@rounds(100, 1_000)
async def test_a_thousand_askers_cost_one_look_a_d15_3(
    async_client: AsyncClient, monkeypatch: pytest.MonkeyPatch, rounds: int
):
    looks = 0

    def counted() -> runner.ProbeFinding:
        nonlocal looks
        looks += 1
        return runner.ProbeFinding()

    monkeypatch.setattr(servers, "READINESS_PROBES", {"counted": counted})
    began = time.monotonic()
    answers = await asyncio.gather(*(async_client.get("/readyz") for _ in range(rounds)))
    assert {answer.status_code for answer in answers} == {200}
    assert looks <= 1 + (time.monotonic() - began) / views.CACHE_SECONDS


async def test_only_staff_and_the_metrics_token_see_details(async_client: AsyncClient, settings):
    settings.METRICS_TOKEN = "a-long-token-for-metrics"
    ada, grace = await sync_to_async(factories.ada)(), await sync_to_async(factories.grace)()
    assert "checks" not in (await async_client.get("/readyz")).json()
    assert (
        "checks" not in (await async_client.get("/readyz", headers={"Authorization": "Bearer guess"})).json()
    )
    shown = await async_client.get("/readyz", headers={"Authorization": "Bearer a-long-token-for-metrics"})
    assert {check["name"] for check in shown.json()["checks"]} == {"postgres", "migrations", "redis"}
    await async_client.aforce_login(ada)
    assert "checks" not in (await async_client.get("/readyz")).json()
    await async_client.aforce_login(grace)
    assert "checks" in (await async_client.get("/readyz")).json()


def test_a_black_holed_server_costs_its_own_limit_and_nothing_else(
    settings, capsys: pytest.CaptureFixture[str]
):
    """A-D7.1, A-D7.2: it takes connections and never says a word; nothing tells its password"""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        settings.REDIS_URL = f"redis://:very-secret@127.0.0.1:{hole.getsockname()[1]}/0"
        redis.get_redis.cache_clear()
        results = runner.run_probes(
            {"redis": servers.probe_redis, "clock": servers.probe_clock, "postgres": servers.probe_postgres}
        )
    redis.get_redis.cache_clear()
    states = {result.name: (result.status, result.detail) for result in results}
    assert states["redis"] == ("fail", "no answer in time")
    assert states["postgres"][0] == "ok"
    told = capsys.readouterr()
    assert "very-secret" not in f"{results}{told.out}{told.err}"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://:pass@cache.internal:6380/2", "redis://cache.internal:6380/2"),
        ("amqp://user:p%40ss@mq/vhost?key=secret", "amqp://mq/vhost"),
        ("redis://cache:notaport/0", "redis://cache/0"),
    ],
)
def test_an_address_is_shown_without_who_logs_in_there(url: str, told: str):
    """A-D7.2"""
    assert runner.redact_url(url) == told


def test_sigterm_says_not_ready_before_the_socket_closes_a_d15_2():
    port = find_free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "config.http.web_server", "--port", str(port)],
        cwd=ROOT,
        env=os.environ | {"WEB_DRAIN_SECONDS": "60"},
    )
    try:
        _until(lambda: _ready(port) == (200, []))
        process.send_signal(signal.SIGTERM)
        _until(lambda: _ready(port) == (503, ["draining"]))
        process.send_signal(signal.SIGTERM)  # who asks twice is in a hurry
        assert process.wait(PATIENCE_SECONDS) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()


async def test_a_drained_process_exits_by_itself_a_d15_2(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "_draining", type(runner._draining)())
    server = web_server.DrainingServer(uvicorn.Config("config.asgi:application"), drain_seconds=60)
    server.handle_exit(signal.SIGTERM, None)
    assert not await server.on_tick(1)
    server.exits_at = time.monotonic()  # a minute later
    assert await server.on_tick(1)


def _ready(port: int) -> tuple[int, list[str]] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return answer.status, json.load(answer)["failed"]
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)["failed"]
    except OSError:
        return None


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.02)
