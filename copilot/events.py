"""Everything a client can be told: one closed union of frozen dataclasses, and its one codec (E1, A2.6).

An event says what happened, not to whom: `encode` adds the session and the turn, and the reader adds
`cursor` and `at`, which both come from the entry's place in the session's log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, get_args

import msgspec

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
RowKind = Literal["user", "assistant", "reasoning", "tool_call", "tool_result", "note", "summary", "notice"]
Role = Literal["user", "assistant", "summary", "notice"]
SessionState = Literal["idle", "running", "waiting"]
HealingKind = Literal["effort", "thinking", "signature", "images", "credentials"]


@dataclass(frozen=True, kw_only=True)
class AttachmentView:
    file_id: str
    name: str
    type: str
    size: int


class ToolCallContent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_call"):
    call_id: str
    tool: str
    arguments: dict[str, str]  # a preview: at most 6 keys of 120 characters (A9.3), redacted


class ToolResultContent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_result"):
    call_id: str
    tool: str
    success: bool
    preview: str  # at most 4,000 characters
    duration_ms: int
    truncated: bool
    file_id: str | None = None  # the whole output, when the model got a part of it


class NoticeContent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="notice"):
    code: str
    label: str
    hint: str
    action: Literal["retry", "continue", "none"]
    details: str = ""


Content = str | ToolCallContent | ToolResultContent | NoticeContent


@dataclass(frozen=True, kw_only=True)
class MessageView:
    """One row of the transcript as clients see it (A0.3). Notes and server context never become one."""

    id: str
    sequence: int
    turn_id: str | None
    kind: RowKind
    role: Role
    content: Content
    author: str
    attachments: list[AttachmentView]
    branch: int
    created_at: str
    streaming: bool = False  # the row still grows; `*.ended` makes it final
    mid_turn: bool = False
    model: str = ""  # which model wrote it, as shown to people


@dataclass(frozen=True, kw_only=True)
class QueueItem:
    id: str
    text: str
    run_id: str | None
    position: int


@dataclass(frozen=True, kw_only=True)
class Todo:
    text: str
    status: Literal["pending", "in_progress", "completed"]


@dataclass(frozen=True, kw_only=True)
class QuestionView:
    id: str
    turn_id: str
    call_id: str
    question: str
    choices: list[str]
    allow_text: bool
    deadline: str


@dataclass(frozen=True, kw_only=True)
class TurnView:
    """The turn in flight: its rows, folded into their present parts."""

    id: str
    status: Literal["queued", "running", "waiting"]
    origin: str
    run_ids: list[str]
    attempt: int
    messages: list[MessageView]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Token counts that never overlap, except `reasoning`, which is part of `output` (A19.2)."""

    input: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int = 0


# --- the session's own -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SessionSnapshot:
    messages: list[MessageView]
    turn: TurnView | None
    queue: list[QueueItem]
    questions: list[QuestionView]
    todos: list[Todo]
    title: str
    state: SessionState
    reset: bool
    has_older: bool
    approvals: list[dict[str, str]] = field(default_factory=list)
    kind: Literal["session.snapshot"] = "session.snapshot"


@dataclass(frozen=True, kw_only=True)
class SessionChanged:
    title: str
    pinned: bool
    archived: bool
    state: SessionState
    deleted: bool = False
    kind: Literal["session.changed"] = "session.changed"


@dataclass(frozen=True, kw_only=True)
class MessageAdded:
    message: MessageView
    kind: Literal["message.added"] = "message.added"


@dataclass(frozen=True, kw_only=True)
class QueueChanged:
    items: list[QueueItem]
    kind: Literal["queue.changed"] = "queue.changed"


@dataclass(frozen=True, kw_only=True)
class ArtifactAdded:
    file_id: str
    name: str
    type: str
    size: int
    kind: Literal["artifact.added"] = "artifact.added"


@dataclass(frozen=True, kw_only=True)
class LimitReached:
    window: str
    resets_at: str
    queued: int
    kind: Literal["limit.reached"] = "limit.reached"


# --- the turn ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TurnQueued:
    origin: str
    run_ids: list[str]
    kind: Literal["turn.queued"] = "turn.queued"


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
    kind: Literal["turn.succeeded"] = "turn.succeeded"


@dataclass(frozen=True, kw_only=True)
class TurnFailed:
    run_ids: list[str]
    code: str
    notice_id: str | None
    kind: Literal["turn.failed"] = "turn.failed"


@dataclass(frozen=True, kw_only=True)
class TurnCancelled:
    run_ids: list[str]
    reason: Literal["user", "abandoned", "parent"]
    kind: Literal["turn.cancelled"] = "turn.cancelled"


# --- the step ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StepStarted:
    step_id: str
    round: int
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


# --- tools -------------------------------------------------------------------------------------------


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
    message: MessageView | None = None
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
    message: MessageView | None = None
    kind: Literal["tool.finished"] = "tool.finished"


@dataclass(frozen=True, kw_only=True)
class QuestionAsked:
    question: QuestionView
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


# --- the model and everything else -------------------------------------------------------------------


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
    """A refused request goes out again, changed; it costs no try (A7.4)."""

    model: str
    healing: HealingKind
    failure_class: str
    label: str
    kind: Literal["model.healed"] = "model.healed"


@dataclass(frozen=True, kw_only=True)
class ModelSwitched:
    """Another model goes on, until the turn ends (A7.6)."""

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
    message: MessageView | None = None
    kind: Literal["notice.posted"] = "notice.posted"


@dataclass(frozen=True, kw_only=True)
class TodosChanged:
    items: list[Todo]
    kind: Literal["todos.changed"] = "todos.changed"


@dataclass(frozen=True, kw_only=True)
class TitleChanged:
    title: str
    origin: Literal["model", "user", "first_message"]
    kind: Literal["title.changed"] = "title.changed"


Event = (
    SessionSnapshot
    | SessionChanged
    | MessageAdded
    | QueueChanged
    | ArtifactAdded
    | LimitReached
    | TurnQueued
    | TurnRecovering
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
)
Ending = TurnSucceeded | TurnFailed | TurnCancelled

CLASSES: dict[str, type[Event]] = {cls.kind: cls for cls in get_args(Event)}
ENDING_KINDS = frozenset({"turn.succeeded", "turn.failed", "turn.cancelled"})

_encoder = msgspec.json.Encoder()


def encode(event: Event, *, session_id: str, turn_id: str | None = None) -> bytes:
    """One JSON object as it stands in the log, without the place the reader adds."""
    head = b'{"session_id":"' + session_id.encode() + b'",'
    if turn_id is not None:
        head += b'"turn_id":"' + turn_id.encode() + b'",'
    return head + _encoder.encode(event)[1:]


def place(payload: str, cursor: str) -> str:
    """The event as a client gets it: the log's JSON with its cursor and the time it was logged."""
    return f'{{"cursor":"{cursor}","at":"{_time_of(cursor)}",{payload[1:]}'


def _time_of(cursor: str) -> str:
    milliseconds = cursor.partition("-")[0].rjust(13, "0")
    return f"{_second(int(milliseconds[:-3]))}.{milliseconds[-3:]}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    """Thousands of events share one second, and formatting it costs more than sending one."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def decode(payload: str | bytes) -> Event:
    """The event inside a log entry; envelope fields are dropped."""
    fields = msgspec.json.decode(payload)
    return msgspec.convert(fields, CLASSES[fields["kind"]])
