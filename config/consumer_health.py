"""Prove that a Celery worker's consumer works, touch HEARTBEAT_FILE while it does, and exit if it does not.

A timer in the worker proves nothing: its loop may run while no message ever arrives. Proof is an exchange with the
broker (an idle consumer asks Redis every few seconds and gets an answer) or a running task. A worker that receives nothing
although the broker answers others exits, and its supervisor restarts it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import structlog
from celery import Celery, bootsteps
from django.conf import settings
from kombu.exceptions import KombuError
from kombu.transport import redis as redis_transport
from kombu.transport import virtual

from config import beat_schedule

log = structlog.get_logger(__name__)

CHECK_INTERVAL_SECONDS = 2.0
PROOF_MAX_AGE_SECONDS = 5.0
IDLE_POLL_SECONDS = 3  # how long Redis holds a poll of an idle consumer; a message ends it at once
MAX_DEAF_SECONDS = (
    40.0  # of silence while the broker answers; Celery waits up to 30 s between attempts to reconnect
)
MAX_SOLO_TASK_SECONDS = 900.0  # for one task of a worker without concurrency
BROKER_TIMEOUT_SECONDS = 2
EXIT_GRACE_SECONDS = 15.0  # beyond a turn's grace period; then the process is killed


SCHEDULED_TASKS = frozenset(str(job["task"]) for job in beat_schedule.build_beat_schedule().values())


def touch_heartbeat_file() -> None:
    if settings.HEARTBEAT_FILE:
        Path(settings.HEARTBEAT_FILE).touch()


def is_broker_reachable(app: Celery) -> bool:
    """Ask over a separate connection, so that a broker outage is not taken for a broken consumer."""
    how = {"socket_timeout": BROKER_TIMEOUT_SECONDS, "socket_connect_timeout": BROKER_TIMEOUT_SECONDS}
    link: Any = app.connection_for_read(connect_timeout=BROKER_TIMEOUT_SECONDS, transport_options=how)
    with link:
        try:
            link.ensure_connection(max_retries=1, interval_start=0.1, timeout=BROKER_TIMEOUT_SECONDS)
            link.channel().close()  # for Redis this is the first exchange with the server
        except (OSError, KombuError, *link.connection_errors):
            return False
    return True


class SlotFreeingQoS(redis_transport.QoS):
    """Free a message's slot even if its acknowledgement did not reach Redis.

    Otherwise the slot stays taken forever, and a worker that prefetches one message receives nothing more. The message
    is delivered again after the visibility timeout, which every task tolerates.
    """

    def ack(self, delivery_tag: str) -> None:
        try:
            super().ack(delivery_tag)
        except redis_transport.Transport.connection_errors:
            virtual.QoS.ack(self, delivery_tag)
            raise

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        try:
            super().reject(delivery_tag, requeue)
        except redis_transport.Transport.connection_errors:
            virtual.QoS.ack(self, delivery_tag)
            raise


class ConsumerStep(bootsteps.StartStopStep):
    """Pass the consumer to the watch whenever it connects, and record that its loop runs."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._timer_entry: Any = None

    def start(self, parent: Any) -> None:
        consumer_watch.consumer = parent
        if isinstance(parent.task_consumer.channel, redis_transport.Channel):
            parent.task_consumer.channel.brpop_timeout = IDLE_POLL_SECONDS
        consumer_watch.record_loop_turn()
        if self._timer_entry is not None:  # Celery drops a lost connection's timers
            self._timer_entry.cancel()
        self._timer_entry = parent.timer.call_repeatedly(1.0, consumer_watch.record_loop_turn)


class ConsumerWatch(threading.Thread):
    """Watch from a separate thread, which a hanging loop cannot block."""

    def __init__(self) -> None:
        super().__init__(name="consumer watch", daemon=True)
        self.app: Celery | None = None
        self.consumer: Any = None
        self._checks: list[Callable[[], float]] = []
        self._loop_turned_at = float("-inf")
        self._deaf_seconds = 0.0

    def start_watching(self, app: Celery) -> None:
        self.app = app
        if not self.is_alive():
            self.start()

    def add_check(self, silent_seconds: Callable[[], float]) -> None:
        """Add a check that returns the seconds since turns were last received."""
        self._checks.append(silent_seconds)

    def record_loop_turn(self) -> None:
        self._loop_turned_at = time.monotonic()

    def run(self) -> None:
        looked_at = time.monotonic()
        while True:
            time.sleep(CHECK_INTERVAL_SECONDS)
            now = time.monotonic()
            # A process that was frozen itself has not missed anything.
            elapsed, looked_at = min(now - looked_at, 2 * CHECK_INTERVAL_SECONDS), now
            try:
                self.check_consumer(elapsed)
            except Exception:
                log.exception("consumer_watch_failed")

    def check_consumer(self, elapsed_seconds: float) -> None:
        self._report_running_jobs()
        assert self.app is not None
        if self.is_healthy() or not is_broker_reachable(self.app):
            self._deaf_seconds = 0.0
            touch_heartbeat_file()
            return
        self._deaf_seconds += elapsed_seconds
        if self._deaf_seconds >= MAX_DEAF_SECONDS:
            log.critical("consumer_deaf", silent_seconds=round(self._deaf_seconds))
            self.exit_process()

    def is_healthy(self) -> bool:
        return self._is_consumer_working() and all(
            silent() < PROOF_MAX_AGE_SECONDS for silent in self._checks
        )

    def _is_consumer_working(self) -> bool:
        state: Any = import_module(
            "celery.worker.state"
        )  # web processes import this module and need no worker
        if state.should_stop is not None or state.should_terminate is not None:
            return True  # it shuts down, and receives nothing more on purpose
        consumer = self.consumer
        if consumer is None or consumer.connection is None or consumer.task_consumer is None:
            return False
        loop_turns = time.monotonic() - self._loop_turned_at < PROOF_MAX_AGE_SECONDS
        working = [request.time_start for request in tuple(state.active_requests)]
        if working and type(consumer.pool).__module__.endswith("solo"):  # its loop waits for the task
            return time.time() - min(began or time.time() for began in working) < MAX_SOLO_TASK_SECONDS
        channel = consumer.task_consumer.channel
        if not isinstance(channel, redis_transport.Channel):
            return loop_turns
        if channel.qos.can_consume():
            # The last request is sent once the one before it was answered.
            asked_at: float | None = getattr(channel, "_brpop_sent_at", None)
            return asked_at is not None and time.monotonic() - asked_at < PROOF_MAX_AGE_SECONDS
        return loop_turns and bool(working)  # full; with nothing running no slot would ever become free

    def _report_running_jobs(self) -> None:
        """Report the scheduled jobs that this worker still runs, so that the scheduler does not send them again."""
        from copilot.worker import heartbeat

        state: Any = import_module("celery.worker.state")
        names = {request.name for request in tuple(state.active_requests)} & SCHEDULED_TASKS
        for name in names:
            heartbeat.record_work(f"job:{name}")

    def exit_process(self) -> None:
        """Exit through Celery's own shutdown, which hands over running turns; if that hangs, exit at once."""
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(EXIT_GRACE_SECONDS + (settings.TURN_GRACE_SECONDS if self._checks else 0))
        os._exit(1)


consumer_watch = ConsumerWatch()


def install_consumer_health(app: Celery) -> None:
    redis_transport.Channel.QoS = SlotFreeingQoS
    app.steps["consumer"].add(ConsumerStep)
