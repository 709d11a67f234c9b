"""What the loop hands to the turn besides events: things made, which become rows before they become news."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from copilot.agent.ports import Asked
from copilot.events import Event, Tokens
from copilot.providers.base import Entry, ToolCall
from copilot.tools.base import CallOutcome


@dataclass(frozen=True, kw_only=True)
class CallMade:
    """A tool call the model made; the turn stores it and tells clients `tool.called`."""

    row_id: UUID
    call: ToolCall


@dataclass(frozen=True, kw_only=True)
class ResultMade:
    """A call's result, stored when it arrives; clients are told `tool.finished`."""

    row_id: UUID
    outcome: CallOutcome


@dataclass(frozen=True, kw_only=True)
class NoteMade:
    """A server row for the model alone (A0.2)."""

    row_id: UUID
    text: str


@dataclass(frozen=True, kw_only=True)
class NoticeMade:
    """A row for people alone; the code is one of A6.5's."""

    row_id: UUID
    code: str
    details: str = ""


@dataclass(frozen=True, kw_only=True)
class ReplayKept:
    """Opaque provider data of the row `row_id` (A14.4): the step's reasoning, text or first call row."""

    row_id: UUID
    data: str


@dataclass(frozen=True, kw_only=True)
class ModelCallStarted:
    """Yielded, and recorded, before the request is sent (A19.3)."""

    id: UUID
    number: int
    entry: Entry


@dataclass(frozen=True, kw_only=True)
class ModelCallEnded:
    id: UUID
    number: int
    entry: Entry
    tokens: Tokens
    cost: str | None
    estimated: bool
    aborted: bool
    refused_before_work: bool
    latency_ms: int
    first_token_ms: int | None
    response_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The loop is done; `limit_code` when a limit of A10 ended it after an answer."""

    limit_code: str | None = None


@dataclass(frozen=True, kw_only=True)
class Failed:
    code: str
    details: str = ""


@dataclass(frozen=True, kw_only=True)
class Paused:
    """Nothing is left to do until a person has decided about these calls (A11.3)."""

    asked: tuple[Asked, ...]


Made = CallMade | ResultMade | NoteMade | NoticeMade | ReplayKept | ModelCallStarted | ModelCallEnded
Ending = Answered | Failed | Paused
Produced = Event | Made | Ending
