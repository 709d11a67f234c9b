"""What caused the work at hand: the id of a request for the logs, a place in a trace for the tracer (D18, D19).

Off until somebody binds a tracer: then a span costs one look at an attribute, and nothing is imported for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

import structlog

Value = str | int | float | bool


class Span(Protocol):
    def note(self, **attributes: Value) -> None:
        """Ids, counts, durations and outcomes; never what people or models said."""


class Tracer(Protocol):
    def span(
        self, name: str, *, parent: str, seed: str, follows: str, attributes: Mapping[str, Value]
    ) -> AbstractContextManager[Span]: ...

    def past(self, name: str, seconds: float, attributes: Mapping[str, Value]) -> None: ...

    def here(self) -> str: ...


class _Nothing:
    """A span nobody looks at."""

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def note(self, **attributes: Value) -> None:
        return None


class _Bound:
    tracer: Tracer | None = None


_NOTHING = _Nothing()


def bind(tracer: Tracer | None) -> None:
    _Bound.tracer = tracer


def span(
    name: str, *, parent: str = "", seed: str = "", follows: str = "", **attributes: Value
) -> AbstractContextManager[Span]:
    """Work that begins here. `parent` is a `here()` of another process; without one the caller's span is.

    A span's id follows from its `seed`, if it has one, so that whoever goes on with its work after it was lost can
    name it: `follows` is the seed of that earlier span.
    """
    tracer = _Bound.tracer
    if tracer is None:
        return _NOTHING
    return tracer.span(name, parent=parent, seed=seed, follows=follows, attributes=attributes)


def nothing() -> AbstractContextManager[Span]:
    """For what is not worth a span."""
    return _NOTHING


def past(name: str, seconds: float, **attributes: Value) -> None:
    """Work that ends now and took so long: for what is only seen when it is over."""
    if _Bound.tracer is not None:
        _Bound.tracer.past(name, seconds, attributes)


def here() -> str:
    """The present span, as other processes are told of it (W3C's traceparent); empty when there is none."""
    return "" if _Bound.tracer is None else _Bound.tracer.here()


def request_id() -> str:
    """Of the request, socket command or job that this code runs for."""
    return str(structlog.contextvars.get_contextvars().get("request_id", ""))
