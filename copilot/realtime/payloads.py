"""Define the parts of events: messages, queue items, questions, approvals and token counts as clients see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import msgspec

MessageKind = Literal[
    "user", "assistant", "reasoning", "tool_call", "tool_result", "note", "summary", "notice"
]
MessageRole = Literal["user", "assistant", "summary", "notice"]
SessionState = Literal["idle", "running", "waiting"]
GoalState = Literal["active", "paused", "achieved", "exhausted", "cleared"]
RequestRepairKind = Literal["effort", "thinking", "signature", "images", "credentials"]


def format_timestamp(moment: datetime) -> str:
    """Format a UTC time as ISO 8601 with milliseconds."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


TOOL_LABELS = {"bash_exec": "Bash", "python_exec": "Python"}  # other labels are derived from the name


def get_tool_label(tool: str) -> str:
    """Return a tool's name for people. rows.js does the same in the browser."""
    if tool in TOOL_LABELS:
        return TOOL_LABELS[tool]
    words = tool.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


@dataclass(frozen=True, kw_only=True)
class AttachmentPayload:
    file_id: str
    name: str
    type: str
    size: int


@dataclass(frozen=True, kw_only=True)
class ArtifactPayload:
    """A file that the agent made. Files with the same name are versions, ordered by time."""

    file_id: str
    name: str
    type: str
    size: int
    created_at: str = ""
    call_id: str = ""  # the tool call that made it


class ToolCallContent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_call"):
    call_id: str
    tool: str
    arguments: dict[str, str]  # a redacted preview: at most 6 keys of 120 characters
    label: str = ""  # what it has done, such as "Searched the web"
    running_label: str = ""  # what it does while it runs
    shortened: bool = False  # the preview lacks something of the arguments


class ToolResultContent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_result"):
    call_id: str
    tool: str
    success: bool
    preview: str  # at most 4,000 characters
    duration_ms: int
    truncated: bool
    file_id: str | None = None  # the whole output, when the model got only a part of it
    session_id: str | None = None  # of the sub-session or builder session that the call started
    cancelled: bool = False  # a person stopped it
    summary: str = ""  # the outcome in a few words, such as "8 results"
    program_failed: bool = False  # the tool worked, but the program it ran ended with an error


class NoticeContent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="notice"):
    code: str
    label: str
    hint: str
    action: Literal["retry", "continue", "none"]
    details: str = ""
    provider: str = ""  # that failed
    model: str = ""
    request_id: str = ""


MessageContent = str | ToolCallContent | ToolResultContent | NoticeContent


@dataclass(frozen=True, kw_only=True)
class MessagePayload:
    """One row of the transcript as clients see it. Notes and server context are never sent."""

    id: str
    sequence: int
    turn_id: str | None
    kind: MessageKind
    role: MessageRole
    content: MessageContent
    author: str
    attachments: list[AttachmentPayload]
    branch: int  # the version of a user's message, counted from 0
    created_at: str
    streaming: bool = False  # the row still grows; `*.ended` makes it final
    mid_turn: bool = False
    model: str = ""  # name of the model that wrote it
    versions: int = 1  # of a user's message: how many versions a person can switch between
    duration_ms: int | None = None  # of an answer: the duration of its turn, once that has succeeded
    origin: str = ""  # of a message that no person wrote: follow_up, goal, parent or schedule


@dataclass(frozen=True, kw_only=True)
class QueueItem:
    id: str
    text: str
    run_id: str | None
    position: int
    attachments: list[AttachmentPayload] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Todo:
    text: str
    status: Literal["pending", "in_progress", "completed"]


@dataclass(frozen=True, kw_only=True)
class QuestionPayload:
    id: str
    turn_id: str
    call_id: str
    question: str
    choices: list[str]
    allow_text: bool
    deadline: str


@dataclass(frozen=True, kw_only=True)
class ApprovalPayload:
    """A tool call that waits for a decision. No other payload shows money; here the decision depends on it."""

    id: str
    turn_id: str
    call_id: str
    tool: str
    arguments: dict[str, Any]  # JSON, redacted
    reason: str
    block_reason: str = ""
    estimate_microdollars: int | None = None
    remaining_cap_microdollars: int | None = None
    editable: bool = True
    can_always_allow: bool = True  # False: every such call needs an approval, whatever the chat allows


@dataclass(frozen=True, kw_only=True)
class AutoApprovePayload:
    """A chat's setting to run tool calls without approval, up to a total cost."""

    enabled: bool = False
    cap_microdollars: int | None = None  # None allows only free calls
    sub_sessions: bool = False  # also in its sub-sessions, which share the cap
    inherited: bool = False  # of a sub-session: the setting comes from its root


@dataclass(frozen=True, kw_only=True)
class GoalPayload:
    text: str
    state: GoalState
    reason: str = ""
    continuations: int = 0  # turns that the server has started for it so far


@dataclass(frozen=True, kw_only=True)
class ContextPayload:
    """The fill of the model's context window at the end of the last turn."""

    used_percent: float | None = None  # None when the usage or the window's size is unknown
    estimated: bool = True


@dataclass(frozen=True, kw_only=True)
class TurnPayload:
    """The unfinished turn with its rows so far."""

    id: str
    status: Literal["queued", "running", "waiting"]
    origin: str
    run_ids: list[str]
    attempt: int
    messages: list[MessagePayload]
    throttle: Literal["", "user", "address"] = ""  # why it waits although a worker is free


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Token counts that do not overlap, except `reasoning`, which is part of `output`."""

    input: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int = 0


@dataclass(frozen=True, kw_only=True)
class ContextUsage:
    """The fill of the model's context window, as the provider counted it or as we estimate it."""

    tokens: int = 0  # 0 means unknown
    window: int = 0  # 0 means unknown
    through: int = 0  # sequence of the last row in the context
    estimated: bool = True
    model: str = ""
    shape: str = ""  # a digest of the system prompt's suffix and the tools of the request

    def to_payload(self) -> ContextPayload:
        known = self.tokens and self.window
        percent = round(100 * self.tokens / self.window, 1) if known else None
        return ContextPayload(used_percent=percent, estimated=self.estimated)
