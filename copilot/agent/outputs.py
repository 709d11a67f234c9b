"""Define what the loop emits besides events: parts that are stored as rows before they are published."""

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
# How a reply ended ("cut": by the output limit, without calls), or the failure of a call without a reply.
ModelCallEnding = Literal["", "answered", "cut", "called"] | FailureCode


@dataclass(frozen=True, kw_only=True)
class ToolCallAdded:
    """A tool call of the model, published as `tool.called`."""

    row_id: UUID
    call: ToolCall
    of_client: bool = False  # the caller of the API runs it


@dataclass(frozen=True, kw_only=True)
class ToolResultAdded:
    """The result of a call, published as `tool.finished`."""

    row_id: UUID
    outcome: ToolCallOutcome


@dataclass(frozen=True, kw_only=True)
class NoteAdded:
    """A row that only the model reads."""

    row_id: UUID
    text: str


@dataclass(frozen=True, kw_only=True)
class NoticeAdded:
    """A row that only people read."""

    row_id: UUID
    code: str
    details: str = ""


@dataclass(frozen=True, kw_only=True)
class ReasoningReplayAdded:
    """Opaque provider data for the row `row_id`: the step's reasoning, text or first call."""

    row_id: UUID
    data: str


@dataclass(frozen=True, kw_only=True)
class ModelCallStarted:
    """A model call, recorded before its request is sent."""

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
    partial: bool = False  # failed after text or calls had arrived


@dataclass(frozen=True, kw_only=True)
class SummaryAdded:
    """A summary that replaces everything up to `anchor` except the `kept` rows, which follow it unchanged."""

    row_id: UUID
    text: str
    anchor: int
    kept: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    window: int


@dataclass(frozen=True, kw_only=True)
class CompactionSucceeded:
    """The compacted context and its estimated size. The summary's row is stored."""

    messages: tuple[ModelMessage, ...]
    tokens: int


@dataclass(frozen=True, kw_only=True)
class CompactionFailed:
    reason: str


@dataclass(frozen=True, kw_only=True)
class LoopAnswered:
    """The loop is done; `limit_code` is set if a limit ended it after an answer."""

    limit_code: str | None = None


@dataclass(frozen=True, kw_only=True)
class LoopFailed:
    code: str
    details: str = ""
    # The same failure of another model is equal.
    source: FailureSource = field(default=NO_SOURCE, compare=False)


@dataclass(frozen=True, kw_only=True)
class ApprovalNeeded:
    """A call that waits for a person's approval."""

    call: ToolCall
    reason: str
    block_reason: str = ""  # why it was not approved automatically
    manual_only: bool = False
    billable: bool = False
    estimate: int | None = None  # microdollars
    pinned: dict[str, JSON] | None = None  # what the arguments referred to when the person was asked
    refusal: str = ""  # for the model, when nobody can be asked or asking is pointless


@dataclass(frozen=True, kw_only=True)
class LoopPaused:
    """The loop waits until a person has decided about `calls`, and the API's caller has run `client_calls`."""

    calls: tuple[ApprovalNeeded, ...] = ()
    client_calls: tuple[ToolCall, ...] = ()


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
LoopOutput = Event | RecordedOutput
