"""The Celery application: queues `turns`, `chats`, `default` and `maintenance` (settings CELERY_*)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery, bootsteps
from celery.signals import setup_logging, task_prerun, worker_init, worker_process_init, worker_shutdown

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

SPEAKING_SECONDS = 3.0  # for what a chat platform has not taken yet when its worker leaves

app = Celery("pilothouse")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

from config import jobs as jobs  # noqa: E402 - connects itself to what every task tells


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Celery leaves logging alone when somebody answers this signal: settings.LOGGING rules."""


@task_prerun.connect
def _look_at_connection(**_: object) -> None:
    """A connection that broke since this thread's last task is replaced; a new one for each task costs more than most."""
    from django.db import close_old_connections

    close_old_connections()


class Heartbeat(bootsteps.StartStopStep):
    """Touches HEARTBEAT_FILE for as long as the worker's own timer runs: what a container's check looks at (D15)."""

    requires = ("celery.worker.components:Timer",)
    SECONDS = 5.0

    def start(self, parent: Any) -> None:
        from django.conf import settings

        if settings.HEARTBEAT_FILE:
            file = Path(settings.HEARTBEAT_FILE)
            file.touch()
            parent.timer.call_repeatedly(self.SECONDS, file.touch)


app.steps["worker"].add(Heartbeat)


def _runs_turns(worker: object) -> bool:
    return "turns" in getattr(getattr(worker, "app", app), "amqp", app.amqp).queues.consume_from


@worker_process_init.connect
def _trace_in_child(**_: object) -> None:
    """A child of a prefork pool has no thread of its parent's that would send its spans."""
    from config import tracing

    tracing.start("worker")


@worker_init.connect
def _start_engine(sender: object = None, **_: object) -> None:
    """A worker of the queue `turns` has its event loop, and the SDKs loaded, before the first task comes."""
    from config import logs, tracing
    from diagnostics import metrics

    logs.speak_as(str(getattr(sender, "hostname", "")))
    tracing.start("worker")
    metrics.serve_from_worker()
    if _runs_turns(sender):
        from copilot import engine

        running = engine.start(["turns"])
        logs.speak_as(running.identity.worker)
        running.listen()


@worker_shutdown.connect
def _finish_speaking(**_: object) -> None:
    from linking import outbound

    outbound.settle(SPEAKING_SECONDS)


@worker_shutdown.connect
def _drain_engine(sender: object = None, **_: object) -> None:
    if _runs_turns(sender):
        from copilot import engine

        engine.drain()
