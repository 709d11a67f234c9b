"""The Celery application: queues `turns`, `chats`, `default` and `maintenance` (settings CELERY_*)."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from celery import Celery
from celery.signals import (
    setup_logging,
    task_postrun,
    task_prerun,
    worker_init,
    worker_process_init,
    worker_shutdown,
)

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from config import consumer_health

log = logging.getLogger(__name__)

SPEAKING_SECONDS = 3.0  # for what a chat platform has not taken yet when its worker leaves

app = Celery("pilothouse")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
consumer_health.install(app)

from config import jobs as jobs  # noqa: E402 - connects itself to what every task tells
from diagnostics.broker import STEADY_QUEUES  # noqa: E402


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Celery leaves logging alone when somebody answers this signal: settings.LOGGING rules."""


@task_prerun.connect
def _look_at_connection(**_: object) -> None:
    """A connection that broke since this thread's last task is replaced; a new one for each task costs more than most."""
    from django.db import close_old_connections

    close_old_connections()


def _queues(worker: object) -> set[str]:
    return set(getattr(getattr(worker, "app", app), "amqp", app.amqp).queues.consume_from)


@worker_process_init.connect
def _trace_in_child(**_: object) -> None:
    """A child of a prefork pool has no thread of its parent's that would send its spans."""
    from config import tracing

    tracing.start("worker")


@worker_init.connect
def _start_worker(sender: object = None, **_: object) -> None:
    """Start what a worker needs before its first task; one that cannot is ended, for Celery would run it all the same."""
    try:
        _start_parts(sender)
    except Exception:
        log.critical(
            "worker_start_failed: exiting so that the supervisor restarts this worker", exc_info=True
        )
        raise SystemExit(1) from None


def _start_parts(worker: object) -> None:
    from config import logs, tracing
    from diagnostics import loops, metrics

    logs.speak_as(str(getattr(worker, "hostname", "")))
    tracing.start("worker")
    metrics.serve_from_worker()
    queues = _queues(worker)
    if "turns" in queues:  # with its event loop, and the SDKs loaded, before the first task comes
        from copilot import engine

        running = engine.start_when_possible(["turns"], waits=consumer_health.touch_heartbeat_file)
        logs.speak_as(running.identity.worker)
        consumer_health.watch.add_check(running.silent_seconds)
    consumer_health.watch.begin(app)
    if "maintenance" in queues:
        loops.start(loops.MAINTENANCE)
    elif "turns" in queues:
        loops.start(loops.TURNS)


_noted_at: dict[str, float] = {}
NOTE_SECONDS = 1.0


@task_postrun.connect
def _note_work(task: Any = None, **_: object) -> None:
    """Work done proves that a queue is served; at most one note a second, queue and process."""
    queue = (task.request.delivery_info or {}).get("routing_key")
    if queue in STEADY_QUEUES and time.monotonic() - _noted_at.get(queue, 0.0) >= NOTE_SECONDS:
        from copilot import workers

        _noted_at[queue] = time.monotonic()
        workers.note_work(f"queue:{queue}")


@worker_shutdown.connect
def _finish_speaking(**_: object) -> None:
    from linking import outbound

    outbound.settle(SPEAKING_SECONDS)


@worker_shutdown.connect
def _stop_parts(sender: object = None, **_: object) -> None:
    from diagnostics import loops

    loops.stop()
    if "turns" in _queues(sender):
        from copilot import engine

        engine.drain()
