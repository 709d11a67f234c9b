"""The session's own events (E1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from copilot.events.views import (
    ApprovalView,
    ArtifactView,
    AutoApproveView,
    ContextView,
    GoalView,
    MessageView,
    QuestionView,
    QueueItem,
    SessionState,
    Todo,
    TurnView,
)


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
    approvals: list[ApprovalView] = field(default_factory=list)
    auto_approve: AutoApproveView = field(default_factory=AutoApproveView)
    artifacts: list[ArtifactView] = field(default_factory=list)
    queue_version: int = 0
    goal: GoalView | None = None
    context: ContextView = field(default_factory=ContextView)
    kind: Literal["session.snapshot"] = "session.snapshot"


@dataclass(frozen=True, kw_only=True)
class SessionChanged:
    title: str
    pinned: bool
    archived: bool
    state: SessionState
    deleted: bool = False
    child: bool = False  # of another session: lists leave it out (A21)
    auto_approve: AutoApproveView | None = None  # only when it was changed
    platform: str = ""  # the chat platform it began on; empty where nothing but its state has changed (L15)
    active_at: str = ""  # of the last message or ending; empty where that is now
    kind: Literal["session.changed"] = "session.changed"


@dataclass(frozen=True, kw_only=True)
class MessageAdded:
    message: MessageView
    kind: Literal["message.added"] = "message.added"


@dataclass(frozen=True, kw_only=True)
class QueueChanged:
    """The whole queue. News may overtake each other: a list of a lower version than the one known says nothing."""

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
    """The file was deleted, which any chat of its owner hears; should it be brought back, the one that made it adds it."""

    file_id: str
    kind: Literal["artifact.removed"] = "artifact.removed"


@dataclass(frozen=True, kw_only=True)
class LimitReached:
    """Queued messages wait for a cost limit (B7.2)."""

    window: str
    resets_at: str
    queued: int
    reset_cost_cents: int = 0
    can_reset: bool = False
    kind: Literal["limit.reached"] = "limit.reached"


@dataclass(frozen=True, kw_only=True)
class ExportFinished:
    """A background export can be fetched, or could not be made (S15). It is news for its owner in every chat."""

    export_id: str
    state: Literal["ready", "failed"]
    name: str
    kind: Literal["export.finished"] = "export.finished"


@dataclass(frozen=True, kw_only=True)
class AccountClosed:
    """The account is being given up: every socket of its owner is closed (S17)."""

    kind: Literal["account.closed"] = "account.closed"
