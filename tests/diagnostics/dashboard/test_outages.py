"""While servers are away, forget or refuse, the page still answers, and says which and what to do (D1, D4, D13)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from django.db import connection
from django.test import Client
from kombu import Connection

from config.celery import app
from config.core import redis
from config.core.errors import ServiceUnavailable
from config.core.redis import get_redis
from config.dev.servers import find_free_port
from copilot.worker import health, liveness
from diagnostics import inventory, metrics, reaper, schedules, snapshot
from diagnostics.dashboard.tabs import TABS
from diagnostics.findings import rules
from diagnostics.models import RepairAudit
from tests.support import factories, timeouts
from tests.support.dashboard import DASHBOARD_URL, get_page_text, make_stuck_turn, sign_in_staff

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(inventory, "inspect_celery", list)
    forget()
    yield
    forget()


@pytest.fixture(autouse=True)
def _nobody_is_remembered() -> Iterator[None]:
    inventory._last_answers.clear()
    yield
    inventory._last_answers.clear()


def forget() -> None:
    snapshot.clear_caches()
    inventory.clear_inventory_cache()
    schedules.clear_schedule_cache()
    metrics._cached_probes.clear()


@pytest.fixture
def grace() -> Client:
    return sign_in_staff("view", "repair")


def pages() -> list[str]:
    return [f"{DASHBOARD_URL}{tab.slug}/" if tab.slug else DASHBOARD_URL for tab in TABS]


def codes() -> list[str]:
    return [finding.code for finding in rules.evaluate_findings(snapshot.get_snapshot())]


def test_without_postgres_there_is_a_page_that_says_what_to_do(grace: Client, monkeypatch):
    """A-D4.3, D13: nobody can be recognised, so nothing is told but that"""
    with monkeypatch.context() as patch:
        connection.close()
        patch.setitem(connection.settings_dict, "PORT", find_free_port())
        for where in (DASHBOARD_URL, f"{DASHBOARD_URL}running/"):
            answer = grace.get(where)
            assert answer.status_code == 503, where
            assert "Postgres does not answer" in answer.content.decode()
            assert "manage.py doctor" in answer.content.decode()
        connection.close()
    assert grace.get(DASHBOARD_URL).status_code == 200


def test_on_a_database_that_takes_no_writes_all_can_be_read_and_nothing_is_half_done(grace: Client):
    """D1, D13: the first page says so, and a repair says why it cannot be done"""
    turn = make_stuck_turn()
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        try:
            for where in (*pages(), f"{DASHBOARD_URL}execution/{turn.pk}/"):
                assert grace.get(where).status_code == 200, where
            assert "Act now: Postgres is read-only" in get_page_text(grace, DASHBOARD_URL)
            asked = {"tab": "stuck-queued", "action": "requeue", "ids": [str(turn.pk)]}
            shown = grace.post(f"{DASHBOARD_URL}confirm/", asked)
            assert shown.status_code == 200
            assert "will be changed" not in shown.content.decode()
            assert 'role="alert"' in shown.content.decode()
        finally:
            cursor.execute("SET default_transaction_read_only = off")
    turn.refresh_from_db()
    assert (turn.status, turn.dispatch_count) == ("queued", 0)


def test_without_redis_the_rest_is_shown(grace: Client, settings):
    """A-D4.3, D13: figures that are missing are not zero"""
    factories.turn(factories.session(), "running", attempts=1)
    settings.REDIS_URL = f"redis://127.0.0.1:{find_free_port()}/0"
    redis.get_redis.cache_clear()
    try:
        for where in pages():
            assert grace.get(where).status_code in (200, 503), where
        page = get_page_text(grace, DASHBOARD_URL)
    finally:
        redis.get_redis.cache_clear()
    assert "Redis does not answer" in page
    assert "Chats stand still" in page


def test_without_the_broker_the_rest_is_shown(grace: Client, monkeypatch):
    """A-D4.3, D13"""
    gone = f"redis://127.0.0.1:{find_free_port()}/0"
    monkeypatch.setattr(app, "connection_for_read", lambda **how: Connection(gone, **how))
    page = get_page_text(grace, DASHBOARD_URL)
    assert "Broker does not answer" in page
    assert "New turns are accepted" in page


def test_a_redis_that_lost_its_data_is_reported_and_what_was_restored_is_recorded(grace: Client):
    """A-D2.1, D8, D10: the silent reaper first, then its record"""
    session = factories.session()
    factories.turn(session, "running", attempts=1)
    get_redis().flushdb()
    assert "reaper_silent" in codes()
    assert get_page_text(grace, DASHBOARD_URL)
    reaper.run_sweep_steps()
    [row] = RepairAudit.objects.filter(action="restore")
    assert (row.actor, row.ids) == ("reaper", [session.pk])
    assert f"/admin/copilot/session/{session.pk}/change/" in get_page_text(grace, f"{DASHBOARD_URL}audit/")
    forget()
    assert "reaper_silent" not in codes()
    reaper.run_sweep_steps()
    assert RepairAudit.objects.filter(action="restore").count() == 1


@pytest.mark.parametrize("seconds", [-60, 60])
def test_clocks_that_differ_are_reported(grace: Client, monkeypatch, seconds: int):
    """A-D7.1, D12: this host's against Postgres' and Redis'"""
    real = snapshot.time.time
    monkeypatch.setattr(snapshot.time, "time", lambda: real() + seconds)
    page = get_page_text(grace, DASHBOARD_URL)
    assert "The clocks of this host and of Postgres and Redis differ" in page


# --- servers that take the connection and say nothing -----------------------------------------------------


@pytest.fixture
def hung(settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Redis and the broker, stopped as by SIGSTOP: connections are made, nothing is ever answered."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        address = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        settings.REDIS_URL = address
        monkeypatch.setattr(app, "connection_for_read", lambda **how: Connection(address, **how))
        for name, seconds in timeouts.shipped.items():
            module, _, limit = name.rpartition(".")
            monkeypatch.setattr(f"{module}.{limit}", seconds)
        redis.get_redis.cache_clear()
        yield
    redis.get_redis.cache_clear()
    health.reset_outage()


@pytest.mark.parametrize(
    "wheres",
    [
        pytest.param((DASHBOARD_URL, f"{DASHBOARD_URL}workers/", f"{DASHBOARD_URL}running/"), id="busiest"),
        pytest.param(pages(), id="all", marks=pytest.mark.slow),
    ],
)
def test_pages_come_while_redis_hangs_and_say_what_they_do_not_know(
    grace: Client, hung: None, wheres: Sequence[str]
):
    factories.turn(factories.session(), "running", attempts=1)
    for where in wheres:
        forget()
        began = time.monotonic()
        assert grace.get(where).status_code in (200, 503), where
        assert time.monotonic() - began < 5.0, where  # a second per source, where it was four per figure
    forget()
    assert "Redis does not answer" in get_page_text(grace, DASHBOARD_URL)


def test_redis_is_asked_once_while_it_hangs(hung: None, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    monkeypatch.setattr(health, "Thread", _counted(asked))
    for read in (
        health.get_wakeup_count,
        health.get_redis_health,
        health.was_sweep_blind,
    ):
        with pytest.raises(ServiceUnavailable):
            read()
    assert len(asked) == 1
    health.reset_outage()
    with pytest.raises(ServiceUnavailable):
        health.get_wakeup_count()
    assert len(asked) == 2


def _counted(asked: list[str]) -> Callable[..., threading.Thread]:
    def start(**how: object) -> threading.Thread:
        asked.append("asked")
        return threading.Thread(**how)

    return start


def test_turns_are_unknown_not_dead_while_redis_hangs(hung: None):
    turn = factories.turn(factories.session(), "running", worker="somebody", attempts=1)
    verdicts = liveness.judge_liveness_in_time(liveness.list_turn_evidence())
    assert verdicts == {str(turn.pk): "unknown"}


def test_a_worker_that_answered_before_is_shown_as_unknown_and_not_left_out(
    grace: Client, monkeypatch: pytest.MonkeyPatch
):
    maintenance = inventory.CeleryWorkerAnswer(
        name="maintenance@host", host="host", pid=7, queues=("maintenance",), reserved=0, uptime_seconds=60.0
    )
    for answers, shown in (([maintenance], "alive"), ([], "unknown"), ([maintenance], "alive")):
        monkeypatch.setattr(inventory, "inspect_celery", lambda answers=answers: answers)
        forget()
        [worker] = inventory.list_workers()
        assert (worker.id, worker.status) == ("maintenance@host", shown)
    monkeypatch.setattr(inventory, "inspect_celery", list)
    forget()
    assert "did not answer in time" in get_page_text(grace, f"{DASHBOARD_URL}workers/")
    inventory._last_answers["maintenance@host"] = (maintenance, time.monotonic() - 3600)
    forget()
    assert inventory.list_workers() == ()
