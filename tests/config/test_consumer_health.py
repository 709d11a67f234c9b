"""A worker that hears nothing is found out and leaves; one that starts while a server is away waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.worker import state
from django.db import connection
from kombu import Connection, Consumer, Producer, Queue
from kombu.transport import redis as redis_transport

from config import celery, consumer_health
from config.celery import app
from config.dev.servers import find_free_port
from copilot.models import WorkerHeartbeat
from copilot.realtime import worker_signals
from copilot.worker import turn_worker
from tests.support import factories
from tests.support.turn_engine import ended, start, until


@pytest.fixture
def link(redis_clean: object) -> Iterator[Connection]:
    with app.connection_for_read() as made:
        yield made


def deliver_one(link: Connection) -> tuple[Any, Any]:
    """A channel that may hold one message, and the message it holds."""
    taken: list[Any] = []
    channel: Any = link.channel()
    channel.basic_qos(0, 1, False)
    queue = Queue("tries", routing_key="tries")
    with Consumer(channel, [queue], callbacks=[lambda body, message: taken.append(message)]):
        Producer(link).publish("hello", routing_key="tries", declare=[queue], retry=False)
        until(lambda: _drained(link, taken), 20)
    return channel, taken[0]


def _drained(link: Connection, taken: list[Any]) -> bool:
    with contextlib.suppress(TimeoutError):
        link.drain_events(timeout=1)
    return bool(taken)


def _away(*args: object) -> None:
    raise redis.TimeoutError("frozen")


@pytest.mark.parametrize("settle", ["ack", "reject"])
def test_a_failed_acknowledgement_keeps_no_place_taken(link: Connection, monkeypatch, settle: str):
    """A worker that prefetches one message would never take another: seen after 45 s of a frozen Redis"""
    channel, message = deliver_one(link)
    assert not channel.qos.can_consume()
    monkeypatch.setattr(redis_transport.QoS, "_remove_from_indices", _away)
    with pytest.raises(redis.TimeoutError):
        getattr(message, settle)()
    assert channel.qos.can_consume()
    monkeypatch.undo()


def test_an_idle_consumer_asks_the_broker_again_and_again(link: Connection):
    """The proof rests on kombu's own note of its last question"""
    channel: Any = link.channel()
    asked = set()
    with Consumer(channel, [Queue("tries")]):

        def ask() -> bool:
            _drained(link, [])
            asked.add(channel._brpop_sent_at)
            return len(asked) > 1

        until(ask, 20)
    assert all(isinstance(at, float) and abs(time.monotonic() - at) < 60 for at in asked)


# --- the watch ----------------------------------------------------------------------------------------


class Channel(redis_transport.Channel):
    """A channel without a server, whose last question can be told."""

    def __init__(self, *, asked_seconds_ago: float | None, full: bool) -> None:
        self._brpop_sent_at = None if asked_seconds_ago is None else time.monotonic() - asked_seconds_ago
        self.__dict__["_qos"] = SimpleNamespace(can_consume=lambda: not full)

    def __del__(self) -> None: ...


def consumer(*, asked: float | None = 0.5, full: bool = False, pool: type = ThreadPool) -> SimpleNamespace:
    channel = Channel(asked_seconds_ago=asked, full=full)
    return SimpleNamespace(
        connection=object(), task_consumer=SimpleNamespace(channel=channel), pool=object.__new__(pool)
    )


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> consumer_health.ConsumerWatch:
    made = consumer_health.ConsumerWatch()
    made.app = app
    made.record_loop_turn()
    monkeypatch.setattr(state, "active_requests", set())
    return made


def at_work(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    request = SimpleNamespace(time_start=time.time() - seconds)
    monkeypatch.setattr(state, "active_requests", [request])


def test_a_timer_alone_proves_nothing(watch):
    """The loop turns, and the broker has not answered for a while"""
    watch.consumer = consumer(asked=0.5)
    assert watch.is_healthy()
    watch.consumer = consumer(asked=6.0)
    watch.record_loop_turn()
    assert not watch.is_healthy()
    watch.consumer = consumer(asked=None)
    assert not watch.is_healthy()


def test_a_full_worker_works_only_while_a_task_does(watch, monkeypatch):
    """Full with nothing at work: no place would ever become free"""
    watch.consumer = consumer(asked=600.0, full=True)
    assert not watch.is_healthy()
    at_work(monkeypatch, 3600)
    assert watch.is_healthy()


def test_a_worker_of_one_thread_may_be_at_work_for_a_while(watch, monkeypatch):
    """Its loop waits for the task, though not for ever"""
    watch.consumer = consumer(asked=600.0, full=True, pool=SoloPool)
    at_work(monkeypatch, 60)
    assert watch.is_healthy()
    at_work(monkeypatch, consumer_health.MAX_SOLO_TASK_SECONDS + 1)
    assert not watch.is_healthy()


def test_a_deaf_way_in_of_turns_counts_too(watch):
    watch.consumer = consumer()
    watch.add_check(lambda: 6.0)
    assert not watch.is_healthy()


def test_a_worker_that_leaves_on_purpose_is_not_deaf(watch, monkeypatch):
    watch.consumer = None
    assert not watch.is_healthy()
    monkeypatch.setattr(state, "should_stop", 0)
    assert watch.is_healthy()


def test_a_deaf_worker_leaves_and_its_file_grows_old(
    watch, settings, tmp_path: Path, monkeypatch, redis_clean
):
    """D15: after a while of silence in which the broker answers others"""
    settings.HEARTBEAT_FILE = str(tmp_path / "heartbeat")
    left: list[int] = []
    monkeypatch.setattr(watch, "exit_process", lambda: left.append(1))
    watch.consumer = consumer(asked=60.0)
    for _ in range(int(consumer_health.MAX_DEAF_SECONDS / 2) - 1):
        watch.check_consumer(2.0)
    assert left == []
    assert not Path(settings.HEARTBEAT_FILE).exists()
    watch.check_consumer(2.0)
    assert left == [1]


def test_a_broker_that_is_away_is_no_fault_of_the_worker(watch, settings, tmp_path: Path, monkeypatch):
    """D15: restarting every worker would end the turns they run, and bring no broker back"""
    settings.HEARTBEAT_FILE = str(tmp_path / "heartbeat")
    gone = f"redis://127.0.0.1:{find_free_port()}/0"
    monkeypatch.setattr(app, "connection_for_read", lambda **how: Connection(gone, **how))
    monkeypatch.setattr(watch, "exit_process", lambda: pytest.fail("it must stay"))
    watch.consumer = consumer(asked=60.0)
    for _ in range(3):
        watch.check_consumer(consumer_health.MAX_DEAF_SECONDS)
    assert Path(settings.HEARTBEAT_FILE).exists()


def test_leaving_is_celerys_own_shutdown_first_and_then_certain(watch, monkeypatch):
    acts: list[object] = []
    monkeypatch.setattr(os, "kill", lambda pid, kind: acts.append((pid == os.getpid(), kind)))
    monkeypatch.setattr(consumer_health.time, "sleep", lambda seconds: acts.append("waits"))
    monkeypatch.setattr(os, "_exit", acts.append)
    watch.exit_process()
    assert acts == [(True, signal.SIGTERM), "waits", 1]


# --- starting -----------------------------------------------------------------------------------------


def test_a_worker_that_cannot_start_leaves(monkeypatch):
    """Celery logs what its signals raise and continues: the worker would be there and take nothing"""

    def fails(worker: object) -> None:
        raise ValueError("a setting that is wrong")

    monkeypatch.setattr(celery, "_start_worker_services", fails)
    with pytest.raises(SystemExit):
        celery.worker_init.send(sender=None)


def test_a_worker_that_starts_while_postgres_is_away_takes_turns_once_it_is_back(
    rig, model, monkeypatch, caplog, settings
):
    """Seen: it ran deaf for ever, and every answer took half a minute"""
    monkeypatch.setattr(turn_worker, "_worker", None)
    monkeypatch.setattr(turn_worker, "START_RETRY_SECONDS", 0.05)
    started: list[turn_worker.TurnWorker] = []
    waited: list[int] = []  # a container's check is told that it is not stuck

    def begin() -> None:
        started.append(turn_worker.start_worker_when_possible(["turns"], on_retry=lambda: waited.append(1)))
        connection.close()

    with monkeypatch.context() as away:
        away.setitem(connection.settings_dict, "PORT", find_free_port())
        thread = threading.Thread(target=begin)
        thread.start()
        until(lambda: caplog.text.count("worker_start_delayed") > 1, 20)
        assert started == []
        assert waited
    thread.join(timeout=30)
    [running] = started
    try:
        until(lambda: WorkerHeartbeat.objects.get(pk=running.identity.worker).queues == ["turns"], 20)
        rig.hold_tasks()
        settings.TURN_WAKEUPS = "list"
        assert ended(start(factories.session())).status == "succeeded"
    finally:
        running.drain(0)
        running._loop.call_soon_threadsafe(running._loop.stop)


def test_a_redis_that_says_nothing_is_not_listened_to_for_ever(settings, monkeypatch):
    """A connection whose other end vanished without a word"""
    monkeypatch.setattr(worker_signals, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(worker_signals, "ANSWER_TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        settings.REDIS_URL = f"redis://127.0.0.1:{mute.getsockname()[1]}/0"

        async def listen() -> None:
            bell = worker_signals.TurnQueueReader()
            try:
                await bell.wait_for_turn()
            finally:
                await bell.close()

        with pytest.raises((TimeoutError, redis.RedisError)):
            asyncio.run(asyncio.wait_for(listen(), 20))


def test_an_empty_answer_is_an_answer(redis_clean, monkeypatch):
    monkeypatch.setattr(worker_signals, "POLL_SECONDS", 0.05)

    async def listen() -> object:
        bell = worker_signals.TurnQueueReader()
        try:
            return await bell.wait_for_turn()
        finally:
            await bell.close()

    assert asyncio.run(listen()) is None


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_does_not_listen_names_no_queue(rig):
    """It beats, and nobody may think that it takes turns"""
    worker = rig.start_worker()  # which never subscribed
    assert WorkerHeartbeat.objects.get(pk=worker.name).queues == []
    worker.engine.start_listening()
    until(lambda: WorkerHeartbeat.objects.get(pk=worker.name).queues == ["turns"], 20)
