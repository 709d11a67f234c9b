"""A Celery job goes on with what caused it: its log lines bear that request's id, its span stands in that trace (D18, D19)."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import Any

import structlog
from celery.signals import before_task_publish, task_postrun, task_prerun

from copilot import traces

OPEN = "pilothouse_open"  # what a running task's request holds until it is over


@before_task_publish.connect
def _send_along(headers: dict[str, object] | None = None, **_: object) -> None:
    if headers is not None and (cause := traces.request_id()):
        headers["request_id"] = cause
    if headers is not None and (place := traces.here()):
        headers["traceparent"] = place


@task_prerun.connect
def _begin(task_id: str = "", task: Any = None, **_: object) -> None:
    request = task.request
    stack = ExitStack()
    stack.enter_context(
        structlog.contextvars.bound_contextvars(
            request_id=getattr(request, "request_id", None) or traces.request_id() or uuid.uuid4().hex,
            job=task.name,
        )
    )
    if parent := getattr(
        request, "traceparent", None
    ):  # a job begins no trace: the sweep would make thousands
        stack.enter_context(traces.span("job", parent=str(parent), job=task.name, task_id=task_id))
    setattr(request, OPEN, stack)


@task_postrun.connect
def _end(task: Any = None, **_: object) -> None:
    stack = getattr(task.request, OPEN, None)
    if stack is not None:
        setattr(task.request, OPEN, None)
        stack.close()
