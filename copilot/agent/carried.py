"""What earlier runs of a turn did, and used up of its limits: a pause or a lost worker gives nothing of it back (A3.9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from copilot.providers.base import FailureCode, ToolCall
from copilot.tools.base import CallOutcome


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A request to a model, by name, and how long the next one to it was in coming."""

    model: str
    failure: FailureCode | None = None
    seconds_to_next: float = 0.0
    in_round: bool = False  # of the round that goes on now
    partial: bool = False  # failed in the middle: what had come of it was taken back


@dataclass(frozen=True, kw_only=True)
class Group:
    """The calls of one reply with all their outcomes."""

    calls: tuple[ToolCall, ...]
    outcomes: Mapping[str, CallOutcome]  # by call id


@dataclass(frozen=True, kw_only=True)
class Carried:
    requests: tuple[Sent, ...] = ()
    groups: tuple[Group, ...] = ()  # of the rounds that are still watched
    compactions: int = 0
    forced_compactions: int = 0
    gave_up_compacting: bool = False  # an automatic one failed, and was told of
    spoke: bool = False  # in any of its rounds (A10.6)
    ran_tools: bool = False  # … and the model has said nothing since
