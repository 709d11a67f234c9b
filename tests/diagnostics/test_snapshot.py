"""The figures of one moment: by the formulas, from indexes, shared, and honest about what did not answer (D4, D6, D22)."""

from __future__ import annotations

import random
import threading
import time
import uuid
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from config.celery import app
from config.core import redis
from config.core.redis import get_redis
from config.dev.servers import find_free_port
from copilot.models import Turn, WorkerHeartbeat
from copilot.realtime import redis_keys
from copilot.worker import heartbeat, turn_worker
from diagnostics import aggregates, execution_list, inventory, samples, snapshot, tasks, turn_filters
from diagnostics.findings.rules import evaluate_findings
from diagnostics.models import MetricSample
from diagnostics.queries import CachedValue, open_snapshot
from diagnostics.turn_filters import FilterContext
from tests.support import factories
from tests.support.factories import make_month_of_turns
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import together, until

pytestmark = pytest.mark.django_db
S, H = timedelta(seconds=1), timedelta(hours=1)


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch):
    monkeypatch.setattr(inventory, "INSPECT_TIMEOUT_SECONDS", 0.05)
    snapshot.clear_caches()
    yield
    snapshot.clear_caches()


@pytest.fixture
def now():
    with open_snapshot() as moment:
        return moment


def ended_turns(now, status, count, ago, **fields):
    session = factories.session()
    template = factories.turn(session, status)
    values = {
        "ended_at": now - ago,
        "created_at": now - ago - S,
        "started_at": now - ago,
        "attempts": 1,
        **fields,
    }
    Turn.objects.filter(pk=template.pk).update(**values)
    template.refresh_from_db()
    Turn.objects.bulk_create(_copies(template, count - 1))


def _copies(template, count):
    fields = {
        field.attname: getattr(template, field.attname)
        for field in Turn._meta.concrete_fields
        if field.attname != "id"
    }
    return [Turn(id=uuid.uuid4(), **fields) for _ in range(count)]


# --- formulas ----------------------------------------------------------------------------------------


def test_rates_are_by_the_formulas(now):
    """A-D4.1"""
    ended_turns(now, "failed", 20, 2 * H)
    ended_turns(now, "succeeded", 1200, 2 * H)
    ended_turns(now, "cancelled", 5, 2 * H)
    found = aggregates.aggregate_ended(FilterContext(now=now))
    assert (found["failure_ratio_24h"], found["failures_per_hour_24h"], found["throughput_per_hour_24h"]) == (
        0.0164,
        0.83,
        50.0,
    )
    assert (found["cancelled_24h"], found["failed_1h"], found["failure_ratio_1h"]) == (5, 0, None)


def test_nothing_of_nothing_is_no_ratio(now):
    """A-D4.2"""
    found = aggregates.compute_figures(FilterContext(now=now))
    assert (found["failure_ratio_1h"], found["failure_ratio_24h"], found["latency_p95_ms"]) == (
        None,
        None,
        None,
    )
    assert (found["failed_24h"], found["oldest_running_seconds"]) == (0, None)


def test_a_window_is_half_open(now):
    """A-D4.4: exactly an hour ago counts, a microsecond earlier does not; nor does now itself"""
    ended_turns(now, "succeeded", 1, H)
    ended_turns(now, "succeeded", 1, H + timedelta(microseconds=1))
    ended_turns(now, "succeeded", 1, timedelta(0))
    found = aggregates.aggregate_ended(FilterContext(now=now))
    assert (found["succeeded_1h"], found["succeeded_24h"]) == (1, 2)


def test_times_are_of_the_last_hour(now):
    """A-D4.1: created to ended, queued to started, and to the first token"""
    for seconds in (1, 2, 3):
        ended_turns(
            now, "succeeded", 1, S, created_at=now - seconds * S - S, queued_at=now - 3 * S,
            started_at=now - 2 * S, summary={"first_token_ms": 100 * seconds},
        )  # fmt: skip
    found = aggregates.aggregate_ended(FilterContext(now=now))
    assert (found["latency_p50_ms"], found["latency_p95_ms"]) == (2000.0, 2900.0)
    assert (found["queue_wait_p95_ms"], found["first_event_p95_ms"]) == (1000.0, 290.0)


# --- sources that fail -------------------------------------------------------------------------------


@pytest.fixture
def broker_away():
    before = app.conf.broker_url
    app.conf.broker_url = app.conf.broker_read_url = app.conf.broker_write_url = (
        f"redis://127.0.0.1:{find_free_port()}/0"
    )
    yield
    app.conf.broker_url = app.conf.broker_read_url = app.conf.broker_write_url = before
    snapshot._broker_query.start().result(PATIENCE_SECONDS)  # what is still asked of the one that is away


def test_a_broker_that_is_away_leaves_its_figures_out(broker_away):
    """A-D4.3: null, named, and the rest right"""
    factories.turn(factories.session(), "queued")
    found = snapshot.get_summary()
    assert (found.broker_depth, found.broker_unacked, found.degraded) == (None, None, ("broker",))
    assert (found.queued, found.never_started) == (1, 1)


def test_a_broker_that_is_there_tells_its_depths():
    """A-D4.3: per queue and in all"""
    found = snapshot.get_summary()
    assert found.degraded == ()
    assert found.broker_depth is not None
    assert found.broker_depth["total"] == sum(
        depth for queue, depth in found.broker_depth.items() if queue != "total"
    )
    assert {"turns", "default", "chats", "maintenance", "wakeups", "total"} == set(found.broker_depth)


def test_without_redis_or_postgres_nothing_is_zero(settings, monkeypatch):
    """A-D4.3: of whatever source; findings name the dependency"""
    settings.REDIS_URL = f"redis://127.0.0.1:{find_free_port()}/0"
    redis.get_redis.cache_clear()
    try:
        monkeypatch.setattr(aggregates, "compute_figures", _broken)
        found = snapshot.take_snapshot()
    finally:
        redis.get_redis.cache_clear()
    assert {"postgres", "redis"} <= set(found.summary.degraded)
    assert (found.summary.running, found.summary.failed_24h, found.workers) == (None, None, None)
    assert {finding.code.partition(":")[0] for finding in evaluate_findings(found)} == {"dependency_down"}


def _broken(moment):
    from django.db import OperationalError

    raise OperationalError("gone")


# --- shared ------------------------------------------------------------------------------------------


def test_who_asks_at_once_shares_one_computation():
    """A-D22.2: and nobody computes again within five seconds"""
    gate = threading.Event()
    made = []

    def make_it():
        made.append(1)
        gate.wait(10)
        return "figures"

    shared = CachedValue(make_it, 5.0)
    threads = [threading.Thread(target=shared.get) for _ in range(20)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert (shared.get(), len(made), shared.computations) == ("figures", 1, 1)
    shared.clear()
    assert (shared.get(), len(made)) == ("figures", 2)


def test_who_must_not_wait_gets_what_there_is_while_it_is_made_again(monkeypatch):
    """D16: a scrape is quick after a pause too; what is older than allowed is made first"""
    clock, gate, made = [0.0], threading.Event(), list[float]()
    monkeypatch.setattr("diagnostics.queries.time", SimpleNamespace(monotonic=lambda: clock[0]))

    def make_it():
        if made:
            assert gate.wait(30)
        made.append(clock[0])
        return len(made)

    value = CachedValue(make_it, 5)
    assert value.get_stale(seconds=60) == 1
    clock[0] = 30.0
    assert [value.get_stale(seconds=60) for _ in range(3)] == [1, 1, 1]  # while one of them makes the next
    gate.set()
    until(lambda: value.get_stale(seconds=60) == 2)
    clock[0] = 100.0
    assert value.get_stale(seconds=60) == 3
    assert value.computations == 3


@pytest.mark.django_db(transaction=True)
def test_a_look_is_one_moment_and_writes_nothing():
    """A-D4.1: repeatable read, read only, with a limit for each statement"""
    with CaptureQueriesContext(connection) as made:
        counting_moment = snapshot.compute_summary()
    texts = [query["sql"] for query in made.captured_queries]
    assert any("REPEATABLE READ, READ ONLY" in text for text in texts)
    assert any("statement_timeout = '5s'" in text for text in texts)
    assert counting_moment.running == 0
    with open_snapshot(), connection.cursor() as cursor:
        cursor.execute("SHOW transaction_read_only")
        assert cursor.fetchone()[0] == "on"
        cursor.execute("SELECT count(*) FROM copilot_turn")
        together(_queue_one)
        cursor.execute("SELECT count(*) FROM copilot_turn")
        assert cursor.fetchone()[0] == 0


def _queue_one():
    factories.turn(factories.session(), "queued")
    connection.close()


# --- counts and lists --------------------------------------------------------------------------------


def random_turns(now, seed, number=150):
    """Executions of every kind, with ages around every threshold."""
    draw = random.Random(seed)
    ages = [S, 10 * S, 29 * S, 31 * S, H - S, H + S, 2 * H, 24 * H - S, 24 * H + S, 30 * H]
    for _ in range(number):
        status = draw.choice(["queued", "running", "waiting", "succeeded", "failed", "cancelled"])
        turn = factories.turn(factories.session(), status, origin=draw.choice(["web", "schedule"]))
        created = draw.choice(ages)
        fields = {
            "created_at": now - created,
            "queued_at": now - min(created, draw.choice(ages)),
            "attempts": draw.choice([0, 1]),
            "worker": draw.choice(["alive", "gone"]),
            "stop_requested_at": draw.choice([None, None, now - draw.choice(ages)]),
        }
        if status != "queued" or fields["attempts"]:
            fields["started_at"] = fields["attempt_started_at"] = now - min(created, draw.choice(ages))
        if status == "waiting":
            fields["paused_at"] = now - draw.choice(ages)
        if status in Turn.ENDINGS:
            fields["ended_at"] = now - min(created, draw.choice(ages))
        Turn.objects.filter(pk=turn.pk).update(**fields)
    running = Turn.objects.filter(status="running", worker="alive").values_list("pk", "fence")
    heartbeat.write_redis_heartbeat("alive", [(str(one), fence) for one, fence in running], life_seconds=60)


COUNTED = {
    "running": "running", "queued": "queued", "waiting": "waiting", "never_started": "never_started",
    "cancel_backlog": "cancel_backlog", "orphaned_running": "orphaned_running", "orphaned_queued": "orphaned_queued",
    "long_running_1h": "long_running_1h", "long_running": "long_running_24h", "stuck_queued": "stuck_queued",
    "waiting_old": "waiting_old", "invalid": "invalid_total", "stranded_pending": "stranded_sessions",
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, *(pytest.param(more, marks=pytest.mark.slow) for more in (1, 2))])
def test_every_list_is_as_long_as_its_count(now, seed, monkeypatch):
    """A-D5.3, D22: count(list) equals the summary on random data, page by page"""
    random_turns(now, seed)
    factories.pending(factories.session(), "stranded", run_id="r")
    from copilot.models import Message

    Message.objects.update(created_at=now - H)
    for module in (snapshot, execution_list):  # or some would cross a threshold between two looks
        monkeypatch.setattr(module, "open_snapshot", lambda: nullcontext(now))
    summary = snapshot.compute_summary()
    for condition, name in COUNTED.items():
        pages = [
            execution_list.get_page(
                execution_list.ExecutionFilters(condition=condition),
                execution_list.PageSlice(limit=20, offset=offset),
            )
            for offset in range(0, 200, 20)
        ]
        found = [row.id or row.session_id for page in pages for row in page.results]
        assert len(found) == len(set(found)) == pages[0].total == getattr(summary, name), condition
    failed = execution_list.get_page(
        execution_list.ExecutionFilters(condition="failed", hours=24), execution_list.PageSlice(limit=200)
    )
    assert failed.total == len(failed.results) == summary.failed_24h
    assert execution_list.get_page(execution_list.ExecutionFilters(), execution_list.PageSlice()).total == 150
    live = {
        row.id
        for row in execution_list.get_page(
            execution_list.ExecutionFilters(condition="running"), execution_list.PageSlice(limit=200)
        ).results
        if row.liveness == "live"
    }
    orphaned = {
        row.id
        for row in execution_list.get_page(
            execution_list.ExecutionFilters(condition="orphaned_running"), execution_list.PageSlice(limit=200)
        ).results
    }
    assert not live & orphaned


# --- indexes -----------------------------------------------------------------------------------------


def plans_of(act, *, scans="on"):
    """The plan of each SELECT over executions that an act makes; `off` says that a small table is no reason to read all."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL enable_seqscan = {scans}")
    with CaptureQueriesContext(connection) as made:
        act()
    over_turns = ('FROM "copilot_turn"', "FROM copilot_turn t LEFT JOIN beat")
    texts = [query["sql"] for query in made.captured_queries]
    texts = [text for text in texts if any(source in text for source in over_turns)]
    plans = []
    with connection.cursor() as cursor:
        for text in texts:
            cursor.execute("EXPLAIN " + text.replace("%", "%%"))
            plans.append("\n".join(row[0] for row in cursor.fetchall()))
    return plans


def test_the_summary_reads_executions_by_indexes_alone(now):
    """A-D4.5: every statement over turns is by an index on unfinished rows or on ends"""
    random_turns(now, 1, number=60)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE copilot_turn, copilot_session")  # else all its indexes cost the same
    plans = plans_of(lambda: aggregates.compute_figures(turn_filters.judge_running_turns(now)), scans="off")
    assert len(plans) >= 4
    for plan in plans:
        assert "Seq Scan on copilot_turn" not in plan, plan
        assert any(
            index in plan for index in ("unfinished_turns", "ended_turns", "one_unfinished_turn_per_session")
        ), plan


def test_the_newest_of_all_are_found_without_reading_all(now):
    """A-D5.3: by the indexes that are there; the page is the same as without the short way"""
    random_turns(now, 2, number=60)
    part = execution_list.PageSlice(limit=20, offset=5)
    plans = plans_of(lambda: execution_list.get_page(execution_list.ExecutionFilters(), part), scans="off")
    assert not [plan for plan in plans[1:] if "Seq Scan on copilot_turn" in plan and "created_at" in plan]
    newest = Turn.objects.order_by("-created_at", "pk").values_list("pk", flat=True)[5:25]
    assert [row.id for row in execution_list.get_page(execution_list.ExecutionFilters(), part).results] == [
        str(one) for one in newest
    ]


def best_and_worst(act, *, times=5) -> tuple[float, float]:
    """In milliseconds."""
    act()
    took = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        took.append((time.perf_counter() - began) * 1000)
    return min(took), max(took)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [1_000_000, 2_000_000])
def test_a_million_turns_are_summed_up_in_time(now, capsys, number):
    """A-D4.5: by indexes alone; what it took is told (a million under 200 ms, two under 500 ms on a quiet machine)"""
    make_month_of_turns(number)
    best, worst = best_and_worst(lambda: aggregates.compute_figures(turn_filters.judge_running_turns(now)))
    listed, _ = best_and_worst(
        lambda: execution_list.get_page(
            execution_list.ExecutionFilters(), execution_list.PageSlice(limit=50)
        ),
        times=1,
    )
    page = execution_list.get_page(execution_list.ExecutionFilters(), execution_list.PageSlice(limit=50))
    assert (len(page.results), page.total_is_capped) == (50, True)
    plans = plans_of(lambda: aggregates.compute_figures(turn_filters.judge_running_turns(now)))
    with capsys.disabled():
        print(f"\nsummary over {number:,} turns: {best:.0f} ms at best, {worst:.0f} ms at worst")
        print(f"newest page of all: {listed:.0f} ms")
        print("\n".join(line for plan in plans for line in plan.splitlines() if "Scan" in line))
    assert not [plan for plan in plans if "Seq Scan on copilot_turn" in plan]
    found = aggregates.compute_figures(turn_filters.judge_running_turns(now))
    assert found["succeeded_24h"] + found["failed_24h"] > number / 30 - 1000


# --- inventory ---------------------------------------------------------------------------------------


def test_a_worker_is_alive_then_late_then_lost(now):
    """A-D6.2: by the age of its beat"""
    for name, age in (("a", 0), ("b", 2), ("c", 8), ("d", 40), ("e", 62)):
        WorkerHeartbeat.objects.create(
            worker=name, lock_key=ord(name), host="h", pid=ord(name), version="1", queues=["turns"]
        )
        WorkerHeartbeat.objects.filter(pk=name).update(last_beat_at=now - age * S)
    found = {worker.id: worker.status for worker in inventory.find_workers()}
    assert found == {"a": "alive", "b": "alive", "c": "late", "d": "late", "e": "lost"}


@pytest.fixture
def seconds_passed(monkeypatch):
    """A clock for everything that is remembered."""
    clock = [0.0]
    monkeypatch.setattr("diagnostics.queries.time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


@pytest.mark.parametrize("looked_after", [0.0, 1.9, 4.4])
def test_a_deaf_worker_is_a_finding_within_ten_seconds(
    looked_after, now, seconds_passed, monkeypatch, settings
):
    """D6: whenever the figures were read before"""
    monkeypatch.setattr(inventory, "inspect_celery", list)
    WorkerHeartbeat.objects.create(
        worker="a", lock_key=1, host="h", pid=1, version="1", queues=["turns"], started_at=now - H
    )
    inventory.list_workers()  # somebody reads the page of workers just before
    WorkerHeartbeat.objects.update(queues=[])  # the first beat that says so, as late as it may come
    seconds_passed[0] = looked_after
    snapshot.get_snapshot()
    seconds_passed[0] = 10.0 - (turn_worker.LISTENING_TIMEOUT_SECONDS + settings.WORKER_BEAT_SECONDS)
    assert "deaf_workers" in [finding.code for finding in evaluate_findings(snapshot.get_snapshot())]


def test_looking_every_second_costs_few_questions(seconds_passed, monkeypatch):
    """D4: Celery is asked twelve times a minute at most, and Postgres no more often than before"""
    asked = list[float]()

    def ask_celery():
        asked.append(seconds_passed[0])
        return []

    monkeypatch.setattr(inventory, "inspect_celery", ask_celery)
    snapshot.get_snapshot()
    asked.clear()
    with CaptureQueriesContext(connection) as made:
        for second in range(1, 61):
            seconds_passed[0] = float(second)
            snapshot.get_snapshot()
    assert len(asked) <= 12
    assert len(made.captured_queries) <= 300  # 342 when everything was kept for five seconds


def test_many_keys_are_surveyed_within_a_budget(monkeypatch):
    """A-D6.1: 50,000 session keys, and `partial` where they are too many"""
    with get_redis().pipeline(transaction=False) as pipe:
        for number in range(50_000):
            pipe.xadd(redis_keys.event_log_key(str(uuid.UUID(int=number))), {"k": "v"})
            if number % 5000 == 0:
                pipe.execute()
        pipe.execute()
    get_redis().hset(
        redis_keys.lease_key("stale"), mapping={"turn": str(uuid.uuid4()), "token": "t", "claimed_at": 1}
    )
    streams, leases = inventory.survey_streams(), inventory.list_leases()
    assert streams.partial or streams.count == 50_000
    assert streams.without_life == streams.count
    assert streams.partial or leases.without_turn == ("stale",)
    inventory.clear_inventory_cache()
    monkeypatch.setattr(inventory, "SURVEY_BUDGET_SECONDS", 0.0)
    assert inventory.survey_streams().partial
    get_redis().flushdb()


def test_queues_and_leases_are_listed_with_their_ages(now):
    """A-D6.1: pending buffers: how many, the longest, the oldest"""
    session = factories.session()
    waiting = factories.pending(session, "one")
    get_redis().zadd(redis_keys.queue_key(str(session.pk)), {"1:-:a": 1, "2:-:b": 2})
    found = inventory.survey_buffers()
    assert (found.count, found.messages, found.longest, found.oldest_at) == (1, 2, 2, waiting.created_at)
    get_redis().delete(redis_keys.queue_key(str(session.pk)))


def test_samples_are_one_a_minute_and_kept_a_week(now):
    """A-D22.2: a second sample of the minute changes nothing"""
    tasks.sample()
    count = MetricSample.objects.count()
    assert count > 5
    tasks.sample()
    assert MetricSample.objects.values("name", "taken_at").distinct().count() == MetricSample.objects.count()
    MetricSample.objects.create(taken_at=now - 8 * 24 * H, name="queued", value=1)
    assert samples.purge_samples() == 1
