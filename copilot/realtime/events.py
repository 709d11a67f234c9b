"""Define every event that a client can receive: one closed union of frozen dataclasses and its codec.

An event does not name its session or turn: `encode_event` adds them. The reader adds `cursor` and `at`, which come from
the entry's place in the session's log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, get_args

import msgspec

from copilot.realtime.payloads import (
    ApprovalPayload,
    ArtifactPayload,
    AutoApprovePayload,
    ContextPayload,
    GoalPayload,
    GoalState,
    MessagePayload,
    QuestionPayload,
    QueueItem,
    RequestRepairKind,
    SessionState,
    Todo,
    Tokens,
    TurnPayload,
)

# --- Sessions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SessionSnapshot:
    messages: list[MessagePayload]
    turn: TurnPayload | None
    queue: list[QueueItem]
    questions: list[QuestionPayload]
    todos: list[Todo]
    title: str
    state: SessionState
    reset: bool
    has_older: bool
    approvals: list[ApprovalPayload] = field(default_factory=list)
    auto_approve: AutoApprovePayload = field(default_factory=AutoApprovePayload)
    artifacts: list[ArtifactPayload] = field(default_factory=list)
    queue_version: int = 0
    goal: GoalPayload | None = None
    context: ContextPayload = field(default_factory=ContextPayload)
    kind: Literal["session.snapshot"] = "session.snapshot"


@dataclass(frozen=True, kw_only=True)
class SessionChanged:
    title: str
    pinned: bool
    archived: bool
    state: SessionState
    deleted: bool = False
    child: bool = False  # a sub-session, which lists leave out
    auto_approve: AutoApprovePayload | None = None  # only when it has changed
    platform: str = ""  # the chat platform it began on; empty when only the state has changed
    active_at: str = ""  # time of the last message or ending; empty for now
    kind: Literal["session.changed"] = "session.changed"


@dataclass(frozen=True, kw_only=True)
class MessageAdded:
    message: MessagePayload
    kind: Literal["message.added"] = "message.added"


@dataclass(frozen=True, kw_only=True)
class QueueChanged:
    """The whole queue. Events may arrive out of order: clients ignore a version lower than the one they have."""

    items: list[QueueItem]
    version: int = 0
    kind: Literal["queue.changed"] = "queue.changed"


@dataclass(frozen=True, kw_only=True)
class ArtifactAdded:
    file_id: str
    name: str
    type: str
    size: int
    created_at: str = ""
    call_id: str = ""  # the tool call that made it
    kind: Literal["artifact.added"] = "artifact.added"


@dataclass(frozen=True, kw_only=True)
class ArtifactRemoved:
    """A deleted file, sent to all chats of its owner. After a restore, only the chat that made it adds it again."""

    file_id: str
    kind: Literal["artifact.removed"] = "artifact.removed"


@dataclass(frozen=True, kw_only=True)
class LimitReached:
    """Queued messages wait because a cost limit is used up."""

    window: str
    resets_at: str
    queued: int
    reset_cost_cents: int = 0
    can_reset: bool = False
    kind: Literal["limit.reached"] = "limit.reached"


@dataclass(frozen=True, kw_only=True)
class ExportFinished:
    """A background export is ready or has failed. Sent to all chats of its owner."""

    export_id: str
    state: Literal["ready", "failed"]
    name: str
    kind: Literal["export.finished"] = "export.finished"


@dataclass(frozen=True, kw_only=True)
class AccountClosed:
    """The account is scheduled for deletion. All sockets of its owner are closed."""

    kind: Literal["account.closed"] = "account.closed"


# --- Turns -------------------------------------------------------------------------------------------

CancelReason = Literal["user", "abandoned", "parent"]


@dataclass(frozen=True, kw_only=True)
class TurnQueued:
    origin: str
    run_ids: list[str]
    kind: Literal["turn.queued"] = "turn.queued"


ThrottleReason = Literal["user", "address"]


@dataclass(frozen=True, kw_only=True)
class TurnThrottled:
    """The queued turn waits until another turn of its user, or from its network address, ends."""

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


TurnPhase = Literal["model", "tool", "retry", "question", "compaction"]


@dataclass(frozen=True, kw_only=True)
class TurnHeartbeat:
    phase: TurnPhase
    elapsed_seconds: int
    kind: Literal["turn.heartbeat"] = "turn.heartbeat"


@dataclass(frozen=True, kw_only=True)
class TurnPaused:
    approvals: list[str]
    reason: Literal["approval", "client_tool"] = "approval"
    kind: Literal["turn.paused"] = "turn.paused"


@dataclass(frozen=True, kw_only=True)
class TurnSummary:
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
    context: ContextPayload | None = None  # at the end of the turn; None when it did not change
    kind: Literal["turn.succeeded"] = "turn.succeeded"


@dataclass(frozen=True, kw_only=True)
class TurnFailed:
    run_ids: list[str]
    code: str
    notice_id: str | None
    context: ContextPayload | None = None  # at the end of the turn; None when it did not change
    kind: Literal["turn.failed"] = "turn.failed"


@dataclass(frozen=True, kw_only=True)
class TurnCancelled:
    run_ids: list[str]
    reason: CancelReason
    context: ContextPayload | None = None  # at the end of the turn; None when it did not change
    kind: Literal["turn.cancelled"] = "turn.cancelled"


@dataclass(frozen=True, kw_only=True)
class StepStarted:
    step_id: str
    round: int
    call: int = 0  # the number of its model call
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
    message: MessagePayload | None = None  # filled in by the recorder once the row is stored
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
    message: MessagePayload | None = None
    synthetic: bool = False  # a closing line from the server, not from the model
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


# --- Tools, questions and approvals ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ToolProposed:
    call_id: str
    tool: str
    kind: Literal["tool.proposed"] = "tool.proposed"


@dataclass(frozen=True, kw_only=True)
class ToolCalled:
    call_id: str
    tool: str
    row_id: str
    arguments: dict[str, str]
    message: MessagePayload | None = None
    kind: Literal["tool.called"] = "tool.called"


@dataclass(frozen=True, kw_only=True)
class ToolProgressed:
    call_id: str
    message: str
    kind: Literal["tool.progressed"] = "tool.progressed"


ToolState = Literal["running", "done", "failed", "cancelled", "waiting"]


@dataclass(frozen=True, kw_only=True)
class ToolStateChanged:
    call_id: str
    state: ToolState
    kind: Literal["tool.state_changed"] = "tool.state_changed"


@dataclass(frozen=True, kw_only=True)
class ToolFinished:
    call_id: str
    row_id: str
    success: bool
    duration_ms: int
    preview: str
    truncated: bool
    link: str | None = None
    message: MessagePayload | None = None
    kind: Literal["tool.finished"] = "tool.finished"


@dataclass(frozen=True, kw_only=True)
class QuestionAsked:
    question: QuestionPayload
    kind: Literal["question.asked"] = "question.asked"


@dataclass(frozen=True, kw_only=True)
class QuestionClosed:
    question_id: str
    outcome: Literal["answered", "timed_out", "cancelled", "superseded"]
    kind: Literal["question.closed"] = "question.closed"


@dataclass(frozen=True, kw_only=True)
class FollowUpDelivered:
    message_ids: list[str]
    still_queued: int
    kind: Literal["follow_up.delivered"] = "follow_up.delivered"


@dataclass(frozen=True, kw_only=True)
class ApprovalRequested:
    approvals: list[ApprovalPayload]
    kind: Literal["approval.requested"] = "approval.requested"


@dataclass(frozen=True, kw_only=True)
class ApprovalDecided:
    approval_id: str
    state: Literal["approved", "rejected", "abandoned", "cancelled"]
    by: Literal["user", "automatic", "expiry"]
    edited: bool = False
    kind: Literal["approval.decided"] = "approval.decided"


# --- Models, usage, notices and goals ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ModelRetrying:
    failure_class: str
    label: str
    delay_seconds: float
    attempt: int
    attempts: int
    kind: Literal["model.retrying"] = "model.retrying"


@dataclass(frozen=True, kw_only=True)
class ModelHealed:
    """A refused request was repaired and is sent again. This does not count as a retry."""

    model: str
    healing: RequestRepairKind
    failure_class: str
    label: str
    kind: Literal["model.healed"] = "model.healed"


@dataclass(frozen=True, kw_only=True)
class ModelSwitched:
    """The turn continues with a fallback model until it ends."""

    from_model: str
    to_model: str
    failure_class: str
    label: str
    kind: Literal["model.switched"] = "model.switched"


@dataclass(frozen=True, kw_only=True)
class UsageMetered:
    tokens_per_second: float | None
    context_used_percent: float | None
    tokens: Tokens
    limit_used_percent: float | None = None
    estimated: bool = False
    kind: Literal["usage.metered"] = "usage.metered"


@dataclass(frozen=True, kw_only=True)
class UsageRecorded:
    purpose: str
    tokens: Tokens
    kind: Literal["usage.recorded"] = "usage.recorded"


@dataclass(frozen=True, kw_only=True)
class NoticePosted:
    row_id: str
    code: str
    label: str
    hint: str
    action: Literal["retry", "continue", "none"]
    details: str = ""
    message: MessagePayload | None = None
    kind: Literal["notice.posted"] = "notice.posted"


@dataclass(frozen=True, kw_only=True)
class TodosChanged:
    items: list[Todo]
    kind: Literal["todos.changed"] = "todos.changed"


@dataclass(frozen=True, kw_only=True)
class TitleChanged:
    title: str
    origin: Literal["default", "auto", "manual"]
    kind: Literal["title.changed"] = "title.changed"


@dataclass(frozen=True, kw_only=True)
class ContextCompacting:
    tokens_before: int
    window: int
    kind: Literal["context.compacting"] = "context.compacting"


@dataclass(frozen=True, kw_only=True)
class ContextCompacted:
    tokens_before: int
    tokens_after: int
    window: int
    row_id: str
    message: MessagePayload | None = None  # the divider
    kind: Literal["context.compacted"] = "context.compacted"


@dataclass(frozen=True, kw_only=True)
class ContextCompactionFailed:
    reason: str
    tokens_before: int
    window: int
    kind: Literal["context.compaction_failed"] = "context.compaction_failed"


@dataclass(frozen=True, kw_only=True)
class GoalJudged:
    """A model judged the goal after a turn, or a person changed it."""

    state: GoalState
    reason: str
    text: str = ""  # the goal itself; empty when only the state has changed
    kind: Literal["goal.judged"] = "goal.judged"


@dataclass(frozen=True, kw_only=True)
class GoalContinued:
    state: Literal["active"]
    reason: str
    number: int
    most: int
    kind: Literal["goal.continued"] = "goal.continued"


# --- Side questions, in a log of their own: `session_id` of these events is the id of the question ----


@dataclass(frozen=True, kw_only=True)
class SideQuestionStarted:
    asked_in: str  # the session
    asked: str
    kind: Literal["side.started"] = "side.started"


@dataclass(frozen=True, kw_only=True)
class SideQuestionExtended:
    offset: int  # in characters of the answer before this delta
    delta: str
    kind: Literal["side.extended"] = "side.extended"


@dataclass(frozen=True, kw_only=True)
class SideQuestionEnded:
    outcome: Literal["answered", "stopped", "failed"]
    text: str  # the whole answer, or as much as there is of it
    code: str = ""  # of a failure
    label: str = ""
    kind: Literal["side.ended"] = "side.ended"


# --- The union and its codec -------------------------------------------------------------------------

Event = (
    SessionSnapshot
    | SessionChanged
    | MessageAdded
    | QueueChanged
    | ArtifactAdded
    | ArtifactRemoved
    | LimitReached
    | ExportFinished
    | AccountClosed
    | TurnQueued
    | TurnRecovering
    | TurnThrottled
    | TurnStarted
    | TurnHeartbeat
    | TurnPaused
    | TurnSucceeded
    | TurnFailed
    | TurnCancelled
    | StepStarted
    | StepFinished
    | StepRetracted
    | ReasoningStarted
    | ReasoningExtended
    | ReasoningEnded
    | TextStarted
    | TextExtended
    | TextEnded
    | ToolProposed
    | ToolCalled
    | ToolProgressed
    | ToolStateChanged
    | ToolFinished
    | QuestionAsked
    | QuestionClosed
    | FollowUpDelivered
    | ModelRetrying
    | ModelHealed
    | ModelSwitched
    | UsageMetered
    | UsageRecorded
    | NoticePosted
    | TodosChanged
    | TitleChanged
    | ApprovalRequested
    | ApprovalDecided
    | ContextCompacting
    | ContextCompacted
    | ContextCompactionFailed
    | GoalJudged
    | GoalContinued
    | SideQuestionStarted
    | SideQuestionExtended
    | SideQuestionEnded
)
TurnEnding = TurnSucceeded | TurnFailed | TurnCancelled

EVENT_CLASSES: dict[str, type[Event]] = {cls.kind: cls for cls in get_args(Event)}
ENDING_KINDS = frozenset({"turn.succeeded", "turn.failed", "turn.cancelled"})

_encoder = msgspec.json.Encoder()


def encode_event(event: Event, *, session_id: str, turn_id: str | None = None) -> bytes:
    """Encode an event as the log holds it, without `cursor` and `at`."""
    head = b'{"session_id":"' + session_id.encode() + b'",'
    if turn_id is not None:
        head += b'"turn_id":"' + turn_id.encode() + b'",'
    return head + _encoder.encode(event)[1:]


def add_cursor_and_time(payload: str, cursor: str) -> str:
    return f'{{"cursor":"{cursor}","at":"{_format_cursor_time(cursor)}",{payload[1:]}'


def _format_cursor_time(cursor: str) -> str:
    milliseconds = cursor.partition("-")[0].rjust(13, "0")
    return f"{_format_second(int(milliseconds[:-3]))}.{milliseconds[-3:]}Z"


@lru_cache(maxsize=64)
def _format_second(seconds: int) -> str:
    # Cached: thousands of events share one second, and formatting it costs more than sending one.
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def decode_event(payload: str | bytes) -> Event:
    """Decode the event of a log entry, without the session and turn."""
    fields = msgspec.json.decode(payload)
    return msgspec.convert(fields, EVENT_CLASSES[fields["kind"]])
