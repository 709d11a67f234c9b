"""Request ids for logs and spans for tracing.

Tracing is off until a tracer is bound; a span then costs one attribute lookup and imports nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

import structlog

AttributeValue = str | int | float | bool


class Span(Protocol):
    def note(self, **attributes: AttributeValue) -> None:
        """Record ids, counts, durations and outcomes; never what people or models wrote."""


class Tracer(Protocol):
    def span(
        self, name: str, *, parent: str, seed: str, follows: str, attributes: Mapping[str, AttributeValue]
    ) -> AbstractContextManager[Span]: ...

    def past(self, name: str, seconds: float, attributes: Mapping[str, AttributeValue]) -> None: ...

    def here(self) -> str: ...


class _NoSpan:
    """A span that records nothing."""

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def note(self, **attributes: AttributeValue) -> None:
        return None


class _BoundTracer:
    tracer: Tracer | None = None


_NO_SPAN = _NoSpan()


def bind_tracer(tracer: Tracer | None) -> None:
    _BoundTracer.tracer = tracer


def start_span(
    name: str, *, parent: str = "", seed: str = "", follows: str = "", **attributes: AttributeValue
) -> AbstractContextManager[Span]:
    """Start a span. `parent` is a traceparent of another process; without one the caller's span is the parent.

    A span with a `seed` derives its id from it, so that a later span can link to it after its process was lost:
    `follows` is the seed of that earlier span.
    """
    tracer = _BoundTracer.tracer
    if tracer is None:
        return _NO_SPAN
    return tracer.span(name, parent=parent, seed=seed, follows=follows, attributes=attributes)


def skip_span() -> AbstractContextManager[Span]:
    return _NO_SPAN


def record_past_span(name: str, seconds: float, **attributes: AttributeValue) -> None:
    """Record work that ends now and took this long."""
    if _BoundTracer.tracer is not None:
        _BoundTracer.tracer.past(name, seconds, attributes)


def get_traceparent() -> str:
    """Return the current span as a W3C traceparent for other processes; empty if there is none."""
    return "" if _BoundTracer.tracer is None else _BoundTracer.tracer.here()


def get_request_id() -> str:
    """Return the id of the request, socket command or job that this code runs for."""
    return str(structlog.contextvars.get_contextvars().get("request_id", ""))
