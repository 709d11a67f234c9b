"""Tools, questions, approvals and follow-ups (A2.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from copilot.events.views import ApprovalView, MessageView, QuestionView


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


@dataclass(frozen=True, kw_only=True)
class ApprovalRequested:
    approvals: list[ApprovalView]
    kind: Literal["approval.requested"] = "approval.requested"


@dataclass(frozen=True, kw_only=True)
class ApprovalDecided:
    approval_id: str
    state: Literal["approved", "rejected", "abandoned", "cancelled"]
    by: Literal["user", "automatic", "expiry"]
    edited: bool = False
    kind: Literal["approval.decided"] = "approval.decided"
