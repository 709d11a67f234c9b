"""Scheduled jobs: those not taken in time are dropped, those of older releases are removed, and each sending is recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import celery.beat
import pytest
from celery.beat import SchedulingError
from celery.worker import state
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry
from kombu import Connection
from kombu.exceptions import OperationalError

from config import beat_schedule, consumer_health
from config.beat_scheduler import Scheduler
from config.celery import SchedulerStep, app
from config.core.redis import get_redis
from config.dev.servers import find_free_port
from copilot.realtime import redis_keys
from copilot.worker import heartbeat
from diagnostics import broker_queues

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("name", beat_schedule.build_beat_schedule())
def test_every_job_that_expires_does_so_as_the_database_scheduler_sends_it(name: str):
    """It reads `expire_seconds`, and drops any other word without a sound"""
    job = beat_schedule.build_beat_schedule()[name]
    entry = ModelEntry.from_entry(name, app=app, **job)
    options = job.get("options", {})
    assert entry.options.get("expires") == options.get("expire_seconds")
    if isinstance(job["schedule"], float):
        assert 0 < entry.options["expires"] <= job["schedule"]


@pytest.mark.django_db(transaction=True)  # beat closes connections as it likes
def test_a_job_that_an_older_release_scheduled_is_removed():
    """The database keeps rows that the timetable has dropped, and beat would send them for ever"""
    every = IntervalSchedule.objects.create(every=2, period="seconds")
    for name in ("reap", "sample"):
        PeriodicTask.objects.create(name=name, task=f"diagnostics.tasks.{name}", interval=every)
    PeriodicTask.objects.create(name="their own", task="diagnostics.tasks.purge", interval=every)
    scheduler = Scheduler(app=app, lazy=True)
    scheduler.setup_schedule()
    names = set(PeriodicTask.objects.values_list("name", flat=True))
    assert not names & {"reap", "sample"}
    assert {"their own", "deliver"} <= names


ENTRY = SimpleNamespace(task="linking.tasks.deliver")


def scheduler_with(monkeypatch: pytest.MonkeyPatch, outcome: Exception | str) -> Scheduler:
    def send(self: object, *args: object, **options: object) -> str:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(DatabaseScheduler, "apply_async", send)
    monkeypatch.setattr(DatabaseScheduler, "tick", lambda self: 1.0)
    made = object.__new__(Scheduler)
    made.app = app
    return made


def test_only_a_job_that_the_broker_has_taken_proves_that_the_scheduler_works(
    redis_clean: object, monkeypatch: pytest.MonkeyPatch
):
    """A clock that ticks and reaches nobody is silent; queues are waited for from the first job on"""
    with pytest.raises(SchedulingError):
        scheduler_with(monkeypatch, SchedulingError("away")).apply_async(ENTRY)
    assert heartbeat.read_work_ages(["scheduler"]) == {}
    assert scheduler_with(monkeypatch, "sent").apply_async(ENTRY) == "sent"
    assert set(heartbeat.read_work_ages(["scheduler", "queue:maintenance", "queue:default", "watch"])) == {
        "scheduler",
        "queue:maintenance",
        "queue:default",
    }


def test_a_job_that_is_still_at_work_is_not_sent_again(redis_clean: object, monkeypatch: pytest.MonkeyPatch):
    """A worker notes every two seconds what it is doing; what it notes no more has ended, or died with it"""
    monkeypatch.setattr(
        state, "active_requests", [SimpleNamespace(name=ENTRY.task), SimpleNamespace(name="x")]
    )
    consumer_health.ConsumerWatch()._report_running_jobs()
    assert scheduler_with(monkeypatch, "sent").apply_async(ENTRY) is None
    assert scheduler_with(monkeypatch, "sent").apply_async(SimpleNamespace(task="billing.tasks.fold_usage"))
    get_redis().expire(redis_keys.last_work_key(f"job:{ENTRY.task}"), heartbeat.WORK_LIFETIME_SECONDS - 6)
    assert scheduler_with(monkeypatch, "sent").apply_async(ENTRY) == "sent"


def test_a_scheduler_that_reaches_nobody_leaves_unless_the_broker_is_away(
    redis_clean: object, monkeypatch: pytest.MonkeyPatch, settings, tmp_path: Path
):
    """After a restart it has new connections; a restart would not bring back a broker that is down"""
    settings.HEARTBEAT_FILE = str(tmp_path / "heartbeat")
    deaf = scheduler_with(monkeypatch, SchedulingError("broken"))
    assert deaf.tick() == 1.0
    Path(settings.HEARTBEAT_FILE).unlink()
    deaf._sent_at = time.monotonic() - 61
    with pytest.raises(SystemExit):
        deaf.tick()
    assert not Path(settings.HEARTBEAT_FILE).exists()
    gone = f"redis://127.0.0.1:{find_free_port()}/0"
    monkeypatch.setattr(app, "connection_for_read", lambda **how: Connection(gone, **how))
    assert deaf.tick() == 1.0
    assert Path(settings.HEARTBEAT_FILE).exists()


def test_changes_of_schedules_are_looked_for_every_few_seconds(monkeypatch: pytest.MonkeyPatch):
    """P22: the library asks several times a tick"""
    asked, clock = list[float](), [100.0]

    def ask(self: object) -> bool:
        asked.append(clock[0])
        return True

    monkeypatch.setattr(DatabaseScheduler, "schedule_changed", ask)
    monkeypatch.setattr("config.beat_scheduler.time", SimpleNamespace(monotonic=lambda: clock[0]))
    scheduler = scheduler_with(monkeypatch, "sent")
    answers = []
    for clock[0] in (100.0, 100.0, 104.9, 105.0):
        answers.append(scheduler.schedule_changed())
    assert (answers, asked) == ([True, False, False, True], [100.0, 105.0])


class BrokenService:
    """Beat that ends by itself: its tick failed, or it could reach nobody for a minute."""

    def __init__(self, app: object, scheduler_cls: str) -> None:
        assert scheduler_cls == "config.beat_scheduler:Scheduler"

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


def test_a_worker_whose_scheduler_ends_exits(monkeypatch: pytest.MonkeyPatch):
    """A crash heals by itself: nobody else would start the thread again"""
    exits = list[str]()
    monkeypatch.setattr(celery.beat, "Service", BrokenService)
    monkeypatch.setattr(consumer_health.consumer_watch, "exit_process", lambda: exits.append("exit"))
    step = SchedulerStep(SimpleNamespace(steps=[]), with_scheduler=True)
    assert step.enabled
    step.start(None)
    step.thread.join(10)
    assert exits == ["exit"]
    step.stop(None)
    step.start(None)
    step.thread.join(10)
    assert exits == ["exit"]


def test_a_worker_has_no_scheduler_unless_asked():
    assert not SchedulerStep(SimpleNamespace(steps=[])).enabled


def test_a_tick_that_fails_touches_no_file(settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """D15: the file proves that a tick was done"""
    settings.HEARTBEAT_FILE = str(tmp_path / "heartbeat")

    def fails(self: object) -> float:
        raise OperationalError("away")

    monkeypatch.setattr(DatabaseScheduler, "tick", fails)
    with pytest.raises(OperationalError):
        object.__new__(Scheduler).tick()
    assert not Path(settings.HEARTBEAT_FILE).exists()


@pytest.fixture
def _through_the_broker() -> Iterator[None]:
    before = app.conf.task_always_eager
    app.conf.task_always_eager = False
    yield
    app.conf.task_always_eager = before


@pytest.mark.usefixtures("_through_the_broker", "redis_clean")
def test_what_waits_in_the_broker_is_counted():
    """D4: kombu asks for queues without their prefix, and every one looked empty for ever"""
    for _ in range(3):
        app.send_task("linking.tasks.deliver", queue="maintenance")
    app.send_task("copilot.tasks.index_messages", queue="default", priority=9)
    found = broker_queues.read_queue_depths()
    assert found.by_queue == {"turns": 0, "default": 1, "chats": 0, "maintenance": 3}
