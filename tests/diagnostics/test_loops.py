"""Loops of long-lived processes: one leads, another takes over, and no queue stands between a death and its takeover."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from django.core import mail

from config.core import redis
from config.core.errors import ServiceUnavailable
from config.core.redis import get_redis
from config.dev.servers import find_free_port
from copilot.models import Turn
from copilot.realtime import redis_keys
from copilot.worker import heartbeat
from diagnostics import alerts, inventory, loops, reaper, snapshot
from diagnostics.findings.figures import Snapshot, Summary
from diagnostics.models import MetricSample
from tests.support import factories
from tests.support.turn_engine import status, until

pytestmark = pytest.mark.django_db(transaction=True)
NOW = datetime(2026, 11, 17, 3, tzinfo=UTC)
WELL = Snapshot(summary=Summary(taken_at=NOW))
DEAD = Snapshot(summary=Summary(taken_at=NOW, orphaned_running=1))
HALF_SEEN = Snapshot(summary=Summary(taken_at=NOW, degraded=("broker",)))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    reaper._state.suspected = {}
    monkeypatch.setattr(inventory, "inspect_celery", list)
    monkeypatch.setattr(alerts, "_called_at", float("-inf"))
    snapshot.clear_caches()
    yield
    snapshot.clear_caches()


def dead_turn() -> Turn:
    turn = factories.turn(factories.session(), "running", worker="gone", attempts=1)
    Turn.objects.filter(pk=turn.pk).update(attempt_started_at="2026-01-01T00:00:00Z")
    return turn


@pytest.fixture
def reapers() -> Iterator[list[loops.ReaperLoop]]:
    """Stop everything that was started here."""
    started: list[loops.ReaperLoop] = []
    yield started
    for loop in started:
        loop.stop()


def test_one_leads_until_it_is_silent_or_somebody_goes_first():
    """A lower rank goes first; who has the lead keeps it against its equals"""
    assert heartbeat.take_leadership("reaper", "turns-1", rank=1)
    assert not heartbeat.take_leadership("reaper", "turns-2", rank=1)
    assert heartbeat.take_leadership("reaper", "maintenance", rank=0)
    assert not heartbeat.take_leadership("reaper", "turns-1", rank=1)
    get_redis().delete(redis_keys.leader_key("reaper"))  # it did not renew in time
    assert heartbeat.take_leadership("reaper", "turns-2", rank=1)
    heartbeat.give_up_leadership("reaper", "turns-1")  # which has it no more
    assert not heartbeat.take_leadership("reaper", "turns-1", rank=1)
    heartbeat.give_up_leadership("reaper", "turns-2")
    assert heartbeat.take_leadership("reaper", "turns-1", rank=1)


def test_a_lead_expires():
    assert heartbeat.take_leadership("reaper", "one", rank=0, life_seconds=0.05)
    until(lambda: heartbeat.take_leadership("reaper", "two", rank=0), 5)


def test_dead_workers_turns_are_taken_over_without_any_queue(reapers):
    """D10: a thread looks, and nothing has to be sent or received first"""
    turn = dead_turn()
    loop = loops.ReaperLoop(loops.MAINTENANCE)
    reapers.append(loop)
    loop.start()
    until(lambda: status(turn.pk) == "queued", 20)
    until(lambda: heartbeat.read_sweep_age_seconds() is not None, 20)


def test_a_standby_sweeps_when_the_leader_is_silent_and_steps_back_when_it_is_there(reapers):
    """A frozen process holds nothing up: its lead expires"""
    heartbeat.acquire_leadership("reaper", "frozen", rank=loops.MAINTENANCE, life_seconds=600)
    turn = dead_turn()
    standby = loops.ReaperLoop(loops.TURNS)
    reapers.append(standby)
    standby.start()
    assert not standby.take_lead()
    assert status(turn.pk) == "running"
    get_redis().delete(redis_keys.leader_key("reaper"))
    until(lambda: status(turn.pk) == "queued", 20)
    assert heartbeat.acquire_leadership("reaper", "thawed", rank=loops.MAINTENANCE, life_seconds=600)
    assert not standby.take_lead()


def test_a_sweep_that_has_much_to_do_keeps_the_lead_and_one_that_hangs_loses_it(reapers, monkeypatch):
    """Two that rebuild Redis at once would undo each other's work"""
    entered, over = threading.Event(), threading.Event()

    def tick() -> None:
        entered.set()
        over.wait(60)

    monkeypatch.setattr(reaper, "run_sweep", tick)
    loop = loops.ReaperLoop(loops.MAINTENANCE)
    reapers.append(loop)
    loop.start()
    assert entered.wait(20)
    get_redis().delete(redis_keys.leader_key("reaper"))  # as if five seconds had passed
    until(lambda: not heartbeat.acquire_leadership("reaper", "other", rank=9, life_seconds=0.2), 20)
    monkeypatch.setattr(loops, "MAX_SWEEP_SECONDS", 0.0)
    get_redis().delete(redis_keys.leader_key("reaper"))
    assert heartbeat.acquire_leadership("reaper", "other", rank=0, life_seconds=60)
    over.set()


def test_a_round_that_fails_is_not_the_last(reapers, monkeypatch):
    """Whatever one round meets, the next one comes"""
    rounds: list[int] = []

    def act(self: object) -> None:
        rounds.append(1)
        raise ValueError("a row that cannot be read")

    monkeypatch.setattr(loops.ReaperLoop, "run_once", act)
    loop = loops.ReaperLoop(loops.MAINTENANCE)
    reapers.append(loop)
    loop.start()
    until(lambda: len(rounds) > 1, 20)


def test_without_redis_the_watch_looks_and_the_reaper_does_not(settings):
    """Somebody must tell people that Redis is away; without it nobody can be judged"""
    settings.REDIS_URL = f"redis://127.0.0.1:{find_free_port()}/0"
    redis.get_redis.cache_clear()
    redis.get_script.cache_clear()
    try:
        assert loops.WatchLoop(loops.WEB).take_lead() is True
        assert loops.ReaperLoop(loops.MAINTENANCE).take_lead() is False
        with pytest.raises(ServiceUnavailable):
            heartbeat.take_leadership("reaper", "one", rank=0)
    finally:
        redis.get_redis.cache_clear()
        redis.get_script.cache_clear()


def test_the_watch_tells_people_and_samples_while_nobody_works_on_any_queue(settings):
    """D12, D13: it runs in no queue, so that a queue that died is told of"""
    settings.ADMINS = [("ada@example.com", "ada@example.com")]
    heartbeat.write_work_time("scheduler")
    get_redis().set(
        redis_keys.last_work_key("queue:maintenance"), b"1", ex=heartbeat.WORK_LIFETIME_SECONDS - 100
    )
    found = loops.run_watch(frozenset())
    assert mail.outbox == []  # while an installation starts, much is missing for a moment
    loops.run_watch(found)
    assert "Act now: No worker serves the queue `maintenance`" in [
        message.subject.partition("] ")[2] for message in mail.outbox
    ]
    assert MetricSample.objects.filter(name="running").exists()
    assert heartbeat.read_work_ages(["watch"])


# --- the dead man's switch -----------------------------------------------------------------------------


@pytest.fixture
def outside(settings) -> Iterator[list[str]]:
    heard: list[str] = []

    class Outside(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Outside)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    settings.HEARTBEAT_URL = f"http://127.0.0.1:{server.server_port}/ping/secret"
    yield heard
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_outside_hears_once_a_minute_that_all_is_well(outside, monkeypatch):
    assert alerts.ping_heartbeat_url(WELL)
    assert not alerts.ping_heartbeat_url(WELL)
    monkeypatch.setattr(alerts, "_called_at", alerts.time.monotonic() - 61)
    assert alerts.ping_heartbeat_url(WELL)
    assert outside == ["/ping/secret"] * 2


@pytest.mark.parametrize("seen", [DEAD, HALF_SEEN], ids=["critical", "half seen"])
def test_the_outside_hears_nothing_while_something_is_wrong(outside, seen):
    """Also of what could not be looked at: silence is the alarm"""
    assert not alerts.ping_heartbeat_url(seen)
    assert outside == []


def test_an_outside_that_cannot_be_reached_is_no_failure_and_its_token_is_not_logged(settings, caplog):
    settings.HEARTBEAT_URL = f"http://127.0.0.1:{find_free_port()}/ping/secret"
    assert not alerts.ping_heartbeat_url(WELL)
    assert "heartbeat_url_unreachable" in caplog.text
    assert "secret" not in caplog.text
