"""The Celery application: queues `turns`, `chats`, `default` and `maintenance` (settings CELERY_*)."""

from __future__ import annotations

import gc
import os
import threading
import time
import uuid
from contextlib import ExitStack
from typing import Any

import structlog
from celery import Celery, beat, bootsteps
from celery.signals import (
    before_task_publish,
    setup_logging,
    task_postrun,
    task_prerun,
    worker_init,
    worker_process_init,
    worker_shutdown,
)
from click import Option

from config import consumer_health
from config.core import trace_context

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
# Celery ignores what the system checks find, and running them loads every page. `config.bootstrap` runs them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

log = structlog.get_logger(__name__)

OUTBOUND_FLUSH_SECONDS = 3.0  # for messages that a chat platform has not accepted when its worker stops

app = Celery("pilothouse")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
consumer_health.install_consumer_health(app)


class SchedulerStep(bootsteps.StartStopStep):
    """Run Celery beat in a thread of this worker. If it ends, the worker exits and its supervisor restarts both."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, with_scheduler: bool = False, **options: Any) -> None:
        super().__init__(parent, **options)
        self.enabled = with_scheduler
        self._is_stopping = False

    def start(self, parent: Any) -> None:
        self._service = beat.Service(app, scheduler_cls=app.conf.beat_scheduler)
        self.thread = threading.Thread(target=self._run_scheduler, name="scheduler", daemon=True)
        self.thread.start()

    def stop(self, parent: Any) -> None:
        self._is_stopping = True
        self._service.stop()

    def _run_scheduler(self) -> None:
        try:
            self._service.start()
        except Exception:
            log.exception("scheduler_failed")
        if not self._is_stopping:
            consumer_health.consumer_watch.exit_process()


app.user_options["worker"].add(
    Option(
        ("--with-scheduler",), is_flag=True, help="Also run beat, which saves a process on small machines."
    )
)
app.steps["worker"].add(SchedulerStep)

from diagnostics.broker_queues import STEADY_QUEUES  # noqa: E402


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Connect to this signal so that Celery leaves logging to settings.LOGGING."""


@task_prerun.connect
def _replace_broken_connection(**_: object) -> None:
    """Replace a connection that broke since this thread's last task; a new one per task would cost more than most tasks."""
    from django.db import close_old_connections

    close_old_connections()


def _get_consumed_queues(worker: object) -> set[str]:
    return set(getattr(getattr(worker, "app", app), "amqp", app.amqp).queues.consume_from)


@worker_process_init.connect
def _trace_in_child(**_: object) -> None:
    """Start tracing in a prefork child, which lacks its parent's exporter thread."""
    from config import tracing

    tracing.start_tracing("worker")


@worker_init.connect
def _start_worker(sender: object = None, **_: object) -> None:
    """Start what a worker needs before its first task. Exit on failure, because Celery would run it anyway."""
    try:
        _start_worker_services(sender)
    except Exception:
        log.critical("worker_start_failed", exc_info=True)
        raise SystemExit(1) from None


def _start_worker_services(worker: object) -> None:
    from config import logging_config, tracing
    from diagnostics import loops, metrics

    logging_config.set_worker_name(str(getattr(worker, "hostname", "")))
    tracing.start_tracing("worker")
    metrics.start_worker_metrics_server()
    queues = _get_consumed_queues(worker)
    if "turns" in queues:  # start the event loop and load the SDKs before the first task
        from copilot.worker import turn_worker

        running = turn_worker.start_worker_when_possible(
            ["turns"], on_retry=consumer_health.touch_heartbeat_file
        )
        logging_config.set_worker_name(running.identity.worker)
        consumer_health.consumer_watch.add_check(running.seconds_since_heard)
    consumer_health.consumer_watch.start_watching(app)
    if "maintenance" in queues:
        loops.start_loops(loops.MAINTENANCE)
    elif "turns" in queues:
        loops.start_loops(loops.TURNS)
    gc.collect()
    gc.freeze()  # prefork children share loaded modules for as long as no collection writes to them


_activity_recorded_at: dict[str, float] = {}
ACTIVITY_INTERVAL_SECONDS = 10.0


@task_postrun.connect
def _record_queue_activity(task: Any = None, **_: object) -> None:
    """Record that a queue is served, at most every ten seconds per queue and process."""
    queue = (task.request.delivery_info or {}).get("routing_key")
    if (
        queue in STEADY_QUEUES
        and time.monotonic() - _activity_recorded_at.get(queue, -ACTIVITY_INTERVAL_SECONDS)
        >= ACTIVITY_INTERVAL_SECONDS
    ):
        from copilot.worker import heartbeat

        _activity_recorded_at[queue] = time.monotonic()
        heartbeat.record_work(f"queue:{queue}")


@worker_shutdown.connect
def _flush_outbound_messages(**_: object) -> None:
    from linking.outbound import worker

    worker.wait_until_sent(OUTBOUND_FLUSH_SECONDS)


@worker_shutdown.connect
def _stop_worker_services(sender: object = None, **_: object) -> None:
    from diagnostics import loops

    loops.stop_loops()
    if "turns" in _get_consumed_queues(sender):
        from copilot.worker import turn_worker

        turn_worker.drain_worker()


CONTEXT_ATTRIBUTE = "pilothouse_open"  # set on a running task's request until it ends


@before_task_publish.connect
def _add_trace_headers(headers: dict[str, object] | None = None, **_: object) -> None:
    if headers is not None and (cause := trace_context.get_request_id()):
        headers["request_id"] = cause
    if headers is not None and (place := trace_context.get_traceparent()):
        headers["traceparent"] = place


@task_prerun.connect
def _enter_task_context(task_id: str = "", task: Any = None, **_: object) -> None:
    request = task.request
    stack = ExitStack()
    stack.enter_context(
        structlog.contextvars.bound_contextvars(
            request_id=getattr(request, "request_id", None)
            or trace_context.get_request_id()
            or uuid.uuid4().hex,
            job=task.name,
        )
    )
    if parent := getattr(
        request, "traceparent", None
    ):  # a periodic job starts no trace, or sweeps would create thousands
        stack.enter_context(
            trace_context.start_span("job", parent=str(parent), job=task.name, task_id=task_id)
        )
    setattr(request, CONTEXT_ATTRIBUTE, stack)


@task_postrun.connect
def _exit_task_context(task: Any = None, **_: object) -> None:
    stack = getattr(task.request, CONTEXT_ATTRIBUTE, None)
    if stack is not None:
        setattr(task.request, CONTEXT_ATTRIBUTE, None)
        stack.close()
