"""Metrics: closed labels, one value over many processes, and no access without a token (D16)."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from wsgiref.simple_server import WSGIServer

import pytest
from django.http import Http404, HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import resolve
from prometheus_client import REGISTRY

from config.core.errors import Conflict
from config.dev.servers import find_free_port
from config.middleware import request_id
from copilot.accounts import deletion
from copilot.models import Session
from copilot.realtime import redis_keys
from copilot.worker import heartbeat
from diagnostics import metrics, snapshot
from tests.support import exports, factories
from tests.support.paths import ROOT
from tests.support.race_repeats import rounds
from tests.support.turn_engine import ended, start, until

pytestmark = pytest.mark.django_db
TOKEN = "a-long-token-for-metrics"
BEARER = {"Authorization": f"Bearer {TOKEN}"}

COUNTING = """
import sys
from copilot import metrics
metrics.executions_ended.labels(outcome="succeeded", kind="turn", origin="web").inc(int(sys.argv[1]))
metrics.websocket_connections.inc()
"""


def series() -> int:
    return sum(len(family.samples) for family in REGISTRY.collect() if "http_requests" in family.name)


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_without_a_token_or_a_network_there_is_nothing_here(client: Client, settings):
    """A-D16.1"""
    assert client.get("/metrics").status_code == 404
    settings.METRICS_TOKEN = TOKEN
    for headers in ({}, {"Authorization": "Bearer guess"}, {"Authorization": TOKEN}):
        refused = client.get("/metrics", headers=headers)
        assert (refused.status_code, refused.content) == (401, b"")
    told = client.get("/metrics", headers=BEARER)
    assert told.status_code == 200
    assert b"pilothouse_executions_ended_total" in told.content


def test_a_network_may_be_let_in_instead(client: Client, settings):
    """A-D16.1"""
    settings.METRICS_ALLOWED_CIDRS = ["10.0.0.0/8", "::1/128"]
    assert client.get("/metrics", REMOTE_ADDR="192.168.1.1").status_code == 401
    assert client.get("/metrics", REMOTE_ADDR="nonsense").status_code == 401
    assert client.get("/metrics", REMOTE_ADDR="10.20.30.40").status_code == 200


@rounds(300, 10_000)
def test_requests_cannot_create_time_series(rf: RequestFactory, rounds: int):
    """A-D16.2"""

    def answer(request: HttpRequest) -> HttpResponse:
        try:
            request.resolver_match = resolve(request.path_info)
        except Http404:
            return HttpResponse(status=404)
        return HttpResponse()

    handle = request_id(answer)
    quiet = logging.getLogger("http")
    quiet.setLevel(logging.WARNING)
    handle(rf.get("/healthy-page"))
    handle(rf.generic("BREW", "/x"))
    before = series()
    try:
        for _ in range(rounds):
            handle(rf.generic(secrets.token_hex(3).upper(), f"/{secrets.token_urlsafe(6)}"))
    finally:
        quiet.setLevel(logging.NOTSET)
    assert series() <= before + 2  # a new (other, 404) pair at most, with its moment of birth


def test_what_several_processes_counted_is_one_figure(
    client: Client, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """D16: multi-process safe; the sockets of processes that are gone are gone"""
    settings.METRICS_TOKEN = TOKEN
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for number in ("3", "4"):
        subprocess.run([sys.executable, "-c", COUNTING, number], cwd=ROOT, env=os.environ, check=True)
    told = client.get("/metrics", headers=BEARER).content.decode()
    assert (
        'pilothouse_executions_ended_total{kind="turn",origin="web",outcome="succeeded"} 7.0'
        in told.splitlines()
    )
    assert "pilothouse_websocket_connections 1.0" not in told


@pytest.mark.django_db(transaction=True)
def test_a_turn_is_counted_once_with_its_call(rig, model):
    """D16: plain counters, at its start and its end"""
    labels = {"outcome": "succeeded", "kind": "turn", "origin": "web"}
    ended_before = value("pilothouse_executions_ended_total", **labels)
    calls_before = value("pilothouse_provider_calls_total", provider="scripted", outcome="answered")
    waits_before = value("pilothouse_queue_wait_seconds_count")
    first_before = value("pilothouse_first_event_seconds_count")
    session: Session = factories.session(factories.ada())
    ended(start(session))
    assert value("pilothouse_executions_ended_total", **labels) == ended_before + 1
    assert (
        value("pilothouse_provider_calls_total", provider="scripted", outcome="answered") == calls_before + 1
    )
    assert value("pilothouse_queue_wait_seconds_count") == waits_before + 1
    assert value("pilothouse_first_event_seconds_count") == first_before + 1
    assert value("pilothouse_turn_seconds_count") >= 1


def test_a_warm_scrape_asks_one_question(client: Client, settings, django_assert_num_queries):
    """D16: quick, for most of what it shows was read for the page or an earlier scrape"""
    settings.METRICS_TOKEN = TOKEN
    client.get("/metrics", headers=BEARER)
    with django_assert_num_queries(1):
        assert client.get("/metrics", headers=BEARER).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_the_state_of_the_system_is_answered_from_the_cached_summary(client: Client, settings):
    """D16: every family of the specification has its name"""
    settings.METRICS_TOKEN = TOKEN
    snapshot.clear_caches()
    factories.turn(factories.session(factories.ada()))
    told = client.get("/metrics", headers=BEARER).content.decode()
    assert 'pilothouse_executions{status="queued"} 1.0' in told
    assert 'pilothouse_probe_ok{name="postgres"} 1.0' in told
    assert f'pilothouse_build_info{{version="{settings.VERSION}"}} 1.0' in told
    families = (
        "executions executions_ended_total turn_seconds queue_wait_seconds first_event_seconds turn_recoveries_total "
        "broker_depth orphaned stuck_queued cancel_backlog workers websocket_connections http_requests_total "
        "http_request_seconds provider_calls_total provider_seconds tool_calls_total cost_microdollars_total "
        "share_hits_total bot_updates_total deliveries_total probe_ok build_info"
    )
    missing = [
        name for name in families.split() if f"# TYPE pilothouse_{name.removesuffix('_total')}" not in told
    ]
    assert missing == []


def test_how_long_reaper_scheduler_and_queues_have_been_silent_is_told(client: Client, settings, redis_clean):
    """D16: the ages grow when the process that does the work dies; one that never worked has none"""
    settings.METRICS_TOKEN = TOKEN
    told = client.get("/metrics", headers=BEARER).content.decode()
    assert not re.search(r"^pilothouse_(reaper|scheduler)_age_seconds", told, re.MULTILINE)
    heartbeat.write_sweep()
    for work in ("scheduler", "watch", "queue:maintenance"):
        heartbeat.write_work_time(work)
    redis_clean.expire(redis_keys.REAPER_KEY, heartbeat.SWEEP_LIFETIME_SECONDS - 30)
    redis_clean.expire(redis_keys.last_work_key("scheduler"), heartbeat.WORK_LIFETIME_SECONDS - 60)
    told = client.get("/metrics", headers=BEARER).content.decode()
    ages = dict(re.findall(r"^pilothouse_(\S+_age_seconds\S*) (\S+)$", told, re.MULTILINE))
    assert 30 <= float(ages["reaper_age_seconds"]) < 50
    assert 60 <= float(ages["scheduler_age_seconds"]) < 80
    assert 0 <= float(ages["watch_age_seconds"]) < 20
    assert 0 <= float(ages['queue_age_seconds{queue="maintenance"}']) < 20


@pytest.mark.django_db(transaction=True)
def test_what_moves_out_in_and_away_is_counted():
    """S19: exports, imports and erasures"""
    counted = {
        "exports": ("outcome", "direct"),
        "imports": ("outcome", "stored"),
        "erasures": ("act", "requested"),
    }

    def values() -> list[float]:
        return [value(f"pilothouse_{name}_total", **{label: word}) for name, (label, word) in counted.items()]

    before, refused = values(), value("pilothouse_imports_total", outcome="already_imported")
    document = exports.exported(exports.conversation(factories.ada())[0])
    exports.imported(factories.bob(), document)
    with pytest.raises(Conflict):
        exports.imported(factories.bob(), document)
    deletion.request_deletion(factories.bob())
    assert [now - then for now, then in zip(values(), before, strict=True)] == [1, 1, 1]
    assert value("pilothouse_imports_total", outcome="already_imported") == refused + 1


# --- a worker's own ----------------------------------------------------------------------------------


@pytest.fixture
def worker_port(settings) -> Iterator[Callable[[], int | None]]:
    """Starts what a worker serves, as it is set up by then; its port, or nothing."""
    opened: list[WSGIServer] = []

    def start_serving() -> int | None:
        settings.METRICS_PORT = find_free_port()
        server = metrics.start_worker_metrics_server()
        opened.extend([server] if server else [])
        return settings.METRICS_PORT if server else None

    yield start_serving
    for server in opened:
        server.shutdown()
        server.server_close()


def asked(port: int, **headers: str) -> tuple[int, str]:
    request = Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    try:
        with urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


@pytest.mark.attack
def test_a_worker_shows_its_figures_to_the_bearer_of_the_token_alone(worker_port, settings):
    settings.METRICS_TOKEN = TOKEN
    port = worker_port()
    for headers in (
        {},
        {"Authorization": "Bearer guess"},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer \xe9"},
    ):
        assert asked(port, **headers) == (401, "")
    status, told = asked(port, **BEARER)
    assert status == 200
    assert "pilothouse_executions_ended_total" in told


@pytest.mark.attack
def test_a_worker_without_a_token_or_a_network_opens_no_port(worker_port, caplog):
    assert worker_port() is None
    assert "METRICS_PORT needs METRICS_TOKEN" in caplog.text


@pytest.mark.attack
def test_a_worker_lets_a_network_in_instead(worker_port, settings):
    settings.METRICS_ALLOWED_CIDRS = ["10.0.0.0/8"]
    assert asked(worker_port())[0] == 401
    settings.METRICS_ALLOWED_CIDRS = ["127.0.0.0/8"]
    assert asked(worker_port())[0] == 200


@pytest.mark.attack
def test_callers_that_say_nothing_do_not_fill_a_worker_with_threads(worker_port, settings, monkeypatch):
    settings.METRICS_TOKEN = TOKEN
    monkeypatch.setattr(metrics._MetricsRequestHandler, "timeout", 0.2)
    port = worker_port()
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(5 * metrics.MAX_CONCURRENT_SCRAPES)
        ]
        for one in silent:  # cut off at once, or after their time
            one.settimeout(30)
            assert one.recv(1) == b""
            assert threading.active_count() <= before + metrics.MAX_CONCURRENT_SCRAPES
        until(lambda: threading.active_count() <= before)
        assert asked(port, **BEARER)[0] == 200
