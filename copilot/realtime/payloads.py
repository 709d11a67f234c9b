"""What events carry: rows, chips, questions and counts as clients see them (A0.3)."""

from __future__ import annotations

from dataclasses import dataclass
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
    """ISO 8601 in UTC, to the millisecond."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


TOOL_LABELS = {"bash_exec": "Bash", "python_exec": "Python"}  # of the others, the name says it


def get_tool_label(tool: str) -> str:
    """A tool's name for people; the browser's twin is in rows.js."""
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
    """A file that the agent made; files of one name are its versions, in the order of their time (S14)."""

    file_id: str
    name: str
    type: str
    size: int
    created_at: str = ""
    call_id: str = ""  # the tool call that made it


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
    session_id: str | None = None  # the conversation it was about: a sub-session's, or a builder's
    cancelled: bool = False  # somebody stopped it (A9.4)


class NoticeContent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="notice"):
    code: str
    label: str
    hint: str
    action: Literal["retry", "continue", "none"]
    details: str = ""
    provider: str = ""  # whose failure it was (A6.2)
    model: str = ""
    request_id: str = ""


MessageContent = str | ToolCallContent | ToolResultContent | NoticeContent


@dataclass(frozen=True, kw_only=True)
class MessagePayload:
    """One row of the transcript as clients see it (A0.3). Notes and server context never become one."""

    id: str
    sequence: int
    turn_id: str | None
    kind: MessageKind
    role: MessageRole
    content: MessageContent
    author: str
    attachments: list[AttachmentPayload]
    branch: int  # which version of a user's message this is, from 0
    created_at: str
    streaming: bool = False  # the row still grows; `*.ended` makes it final
    mid_turn: bool = False
    model: str = ""  # which model wrote it, as shown to people
    versions: int = 1  # of a user's message: how many there are to switch between (W2.7)
    duration_ms: int | None = None  # of an answer: how long its turn took, once that has succeeded


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
    """A call that waits for a person (A11.3). Money is shown here alone, because a cap is decided by it (A19.8)."""

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
    can_always_allow: bool = True  # otherwise the next such call asks again, whatever the chat allows


@dataclass(frozen=True, kw_only=True)
class AutoApprovePayload:
    """Whether a chat's calls run unasked, and what they may cost together (A11.11)."""

    enabled: bool = False
    cap_microdollars: int | None = None  # None: only calls that cost nothing
    sub_sessions: bool = False  # in its sub-sessions too, which draw on the same cap (A21.3)
    inherited: bool = False  # of a sub-session: because its root says so


@dataclass(frozen=True, kw_only=True)
class GoalPayload:
    """What a chat works towards (A30.4)."""

    text: str
    state: GoalState
    reason: str = ""
    continuations: int = 0  # turns the server has started for it so far


@dataclass(frozen=True, kw_only=True)
class ContextPayload:
    """How full the model's window was when the last turn ended (A17.8)."""

    used_percent: float | None = None  # None: nothing is known, or the window's size is not
    estimated: bool = True


@dataclass(frozen=True, kw_only=True)
class TurnPayload:
    """The turn in flight: its rows, folded into their present parts."""

    id: str
    status: Literal["queued", "running", "waiting"]
    origin: str
    run_ids: list[str]
    attempt: int
    messages: list[MessagePayload]
    throttle: Literal["", "user", "address"] = ""  # why it waits though a worker is free


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Token counts that never overlap, except `reasoning`, which is part of `output` (A19.2)."""

    input: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int = 0


@dataclass(frozen=True, kw_only=True)
class ContextUsage:
    """How full the model's window is: as its provider counted, or as we guess (A17.1, A17.8)."""

    tokens: int = 0  # 0 = nothing is known yet
    window: int = 0  # 0 = unknown
    through: int = 0  # the sequence of the last row in it
    estimated: bool = True
    model: str = ""  # who read it
    shape: str = ""  # a digest of the suffix and tools that began the requests (A15.9)

    def to_payload(self) -> ContextPayload:
        known = self.tokens and self.window
        percent = round(100 * self.tokens / self.window, 1) if known else None
        return ContextPayload(used_percent=percent, estimated=self.estimated)
