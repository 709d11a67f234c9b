"""What the loop hands to the turn besides events: things made, which become rows before they become news."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from config.core.json_values import JSON
from copilot.chat.notices import NO_SOURCE, FailureSource
from copilot.providers.base import CatalogueEntry, FailureCode, ModelMessage, ToolCall
from copilot.realtime.events import Event
from copilot.realtime.payloads import Tokens
from copilot.tools.base import ToolCallOutcome

ModelCallPurpose = Literal["reply", "compaction"]
# What a reply came to; cut: by the output limit, without calls. Of none what the call failed with, if anything.
ModelCallEnding = Literal["", "answered", "cut", "called"] | FailureCode


@dataclass(frozen=True, kw_only=True)
class ToolCallAdded:
    """A tool call the model made; the turn stores it and tells clients `tool.called`."""

    row_id: UUID
    call: ToolCall


@dataclass(frozen=True, kw_only=True)
class ToolResultAdded:
    """A call's result, stored when it arrives; clients are told `tool.finished`."""

    row_id: UUID
    outcome: ToolCallOutcome


@dataclass(frozen=True, kw_only=True)
class NoteAdded:
    """A server row for the model alone (A0.2)."""

    row_id: UUID
    text: str


@dataclass(frozen=True, kw_only=True)
class NoticeAdded:
    """A row for people alone; the code is one of A6.5's."""

    row_id: UUID
    code: str
    details: str = ""


@dataclass(frozen=True, kw_only=True)
class ReasoningReplayAdded:
    """Opaque provider data of the row `row_id` (A14.4): the step's reasoning, text or first call row."""

    row_id: UUID
    data: str


@dataclass(frozen=True, kw_only=True)
class ModelCallStarted:
    """Yielded, and recorded, before the request is sent (A19.3)."""

    id: UUID
    number: int
    entry: CatalogueEntry
    purpose: ModelCallPurpose = "reply"


@dataclass(frozen=True, kw_only=True)
class ModelCallEnded:
    id: UUID
    number: int
    entry: CatalogueEntry
    tokens: Tokens
    cost: str | None
    estimated: bool
    aborted: bool
    refused_before_work: bool
    latency_ms: int
    first_token_ms: int | None
    response_id: str = ""
    purpose: ModelCallPurpose = "reply"
    ending: ModelCallEnding = ""
    partial: bool = False  # failed, though text or calls had come (A7.3)


@dataclass(frozen=True, kw_only=True)
class SummaryAdded:
    """What stands for everything up to `anchor` from now on; of that, the rows `kept` follow it verbatim (A17.3)."""

    row_id: UUID
    text: str
    anchor: int
    kept: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    window: int


@dataclass(frozen=True, kw_only=True)
class CompactionSucceeded:
    """The conversation as it goes on, and what it holds by our estimate. Its row stands."""

    messages: tuple[ModelMessage, ...]
    tokens: int


@dataclass(frozen=True, kw_only=True)
class CompactionFailed:
    reason: str


@dataclass(frozen=True, kw_only=True)
class LoopAnswered:
    """The loop is done; `limit_code` when a limit of A10 ended it after an answer."""

    limit_code: str | None = None


@dataclass(frozen=True, kw_only=True)
class LoopFailed:
    code: str
    details: str = ""
    source: FailureSource = field(
        default=NO_SOURCE, compare=False
    )  # which model it was does not make it another failure


@dataclass(frozen=True, kw_only=True)
class ApprovalNeeded:
    """A call that waits for a person's word (A11.1)."""

    call: ToolCall
    reason: str
    block_reason: str = ""  # why it was not approved by itself (A11.11)
    manual_only: bool = False
    billable: bool = False
    estimate: int | None = None  # microdollars
    pinned: dict[str, JSON] | None = None  # what the arguments meant when the person was asked
    refusal: str = ""  # nobody can be asked, or asking is no use: what the model is told instead


@dataclass(frozen=True, kw_only=True)
class LoopPaused:
    """Nothing is left to do until a person has decided about these calls (A11.3)."""

    asked: tuple[ApprovalNeeded, ...]


RecordedOutput = (
    ToolCallAdded
    | ToolResultAdded
    | NoteAdded
    | NoticeAdded
    | ReasoningReplayAdded
    | SummaryAdded
    | ModelCallStarted
    | ModelCallEnded
)
LoopEnding = LoopAnswered | LoopFailed | LoopPaused
LoopOutput = Event | RecordedOutput | LoopEnding
