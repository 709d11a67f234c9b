"""The running turn's identity and abilities: one immutable object in a context variable (A31)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from copilot.permissions import Permissions


@dataclass(frozen=True, kw_only=True)
class Channel:
    """What a way in can do. Both abilities are declared; neither has a default (A31.2)."""

    async_delivery: bool
    interactive: bool


CHANNELS: dict[str, Channel] = {
    "web": Channel(async_delivery=True, interactive=True),
    "api": Channel(async_delivery=False, interactive=True),
    "schedule": Channel(async_delivery=True, interactive=False),
    "goal": Channel(async_delivery=True, interactive=True),
    "parent": Channel(async_delivery=True, interactive=False),
}


def channel_of(origin: str) -> Channel:
    """The one way from a turn's origin to what its channel can do; who declared nothing is told at once (A31.2, A31.3)."""
    if origin not in CHANNELS:
        raise LookupError(f"the channel {origin!r} has not declared what it can do")
    return CHANNELS[origin]


@dataclass(frozen=True, kw_only=True)
class TurnContext:
    user_id: int
    session_id: str
    turn_id: str
    fence: int
    origin: str
    permissions: Permissions
    channel: Channel
    locale: str = "en"
    timezone: str = "UTC"


_current: ContextVar[TurnContext] = ContextVar("copilot_turn")


def current() -> TurnContext:
    """The turn this code runs for; outside a turn it raises, because a guess would leak between users."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("no turn is running here") from None


def peek() -> TurnContext | None:
    """For logs, which are written outside turns too."""
    return _current.get(None)


@contextmanager
def bound(context: TurnContext) -> Iterator[TurnContext]:
    """Bind `context` for the block; nests, and child tasks inherit it."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
