"""A turn from its acceptance to its one ending (A2.6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from copilot.events.views import ContextView, MessageView, Tokens

CancelReason = Literal["user", "abandoned", "parent"]


@dataclass(frozen=True, kw_only=True)
class TurnQueued:
    origin: str
    run_ids: list[str]
    kind: Literal["turn.queued"] = "turn.queued"


ThrottleReason = Literal["user", "address"]


@dataclass(frozen=True, kw_only=True)
class TurnThrottled:
    """The queued turn waits until another of its user's turns, or one from its network address, has ended."""

    reason: ThrottleReason
    kind: Literal["turn.throttled"] = "turn.throttled"


@dataclass(frozen=True, kw_only=True)
class TurnRecovering:
    attempt: int
    kind: Literal["turn.recovering"] = "turn.recovering"


@dataclass(frozen=True, kw_only=True)
class TurnStarted:
    model: str
    tier: str
    mode: str
    resumed: bool
    run_ids: list[str]
    kind: Literal["turn.started"] = "turn.started"


Phase = Literal["model", "tool", "retry", "question", "compaction"]


@dataclass(frozen=True, kw_only=True)
class TurnHeartbeat:
    phase: Phase
    elapsed_seconds: int
    kind: Literal["turn.heartbeat"] = "turn.heartbeat"


@dataclass(frozen=True, kw_only=True)
class TurnPaused:
    approvals: list[str]
    kind: Literal["turn.paused"] = "turn.paused"


@dataclass(frozen=True, kw_only=True)
class TurnSummary:
    """What a finished turn took (A3.6)."""

    duration_ms: int
    first_token_ms: int | None
    tokens_per_second: float | None
    rounds: int
    tokens: Tokens
    model: str


@dataclass(frozen=True, kw_only=True)
class TurnSucceeded:
    run_ids: list[str]
    summary: TurnSummary
    limit_code: str | None = None
    context: ContextView | None = None  # as the turn left it; None: it left it alone
    kind: Literal["turn.succeeded"] = "turn.succeeded"


@dataclass(frozen=True, kw_only=True)
class TurnFailed:
    run_ids: list[str]
    code: str
    notice_id: str | None
    context: ContextView | None = None  # as the turn left it; None: it left it alone
    kind: Literal["turn.failed"] = "turn.failed"


@dataclass(frozen=True, kw_only=True)
class TurnCancelled:
    run_ids: list[str]
    reason: CancelReason
    context: ContextView | None = None  # as the turn left it; None: it left it alone
    kind: Literal["turn.cancelled"] = "turn.cancelled"


@dataclass(frozen=True, kw_only=True)
class StepStarted:
    step_id: str
    round: int
    call: int = 0  # the number of the model call it makes
    kind: Literal["step.started"] = "step.started"


@dataclass(frozen=True, kw_only=True)
class StepFinished:
    step_id: str
    round: int
    finish_reason: str
    kind: Literal["step.finished"] = "step.finished"


@dataclass(frozen=True, kw_only=True)
class StepRetracted:
    step_id: str
    round: int
    failure_class: str
    row_ids: list[str] = field(default_factory=list)
    kind: Literal["step.retracted"] = "step.retracted"


@dataclass(frozen=True, kw_only=True)
class ReasoningStarted:
    block_id: str
    row_id: str
    message: MessageView | None = None  # filled in by the recorder, once the row stands
    kind: Literal["reasoning.started"] = "reasoning.started"


@dataclass(frozen=True, kw_only=True)
class ReasoningExtended:
    block_id: str
    row_id: str
    offset: int
    delta: str
    kind: Literal["reasoning.extended"] = "reasoning.extended"


@dataclass(frozen=True, kw_only=True)
class ReasoningEnded:
    block_id: str
    row_id: str
    kind: Literal["reasoning.ended"] = "reasoning.ended"


@dataclass(frozen=True, kw_only=True)
class TextStarted:
    block_id: str
    row_id: str
    message: MessageView | None = None
    synthetic: bool = False  # the server's closing line, not the model's words (A14.7)
    kind: Literal["text.started"] = "text.started"


@dataclass(frozen=True, kw_only=True)
class TextExtended:
    block_id: str
    row_id: str
    offset: int  # in characters (code points) of the row before this delta
    delta: str
    kind: Literal["text.extended"] = "text.extended"


@dataclass(frozen=True, kw_only=True)
class TextEnded:
    block_id: str
    row_id: str
    kind: Literal["text.ended"] = "text.ended"
