"""Everything a client can be told: one closed union of frozen dataclasses, and its one codec (E1, A2.6).

An event says what happened, not to whom: `encode` adds the session and the turn, and the reader adds
`cursor` and `at`, which both come from the entry's place in the session's log.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import get_args

import msgspec

from copilot.events.asides import SideEnded, SideExtended, SideStarted
from copilot.events.model import (
    ContextCompacted,
    ContextCompacting,
    ContextCompactionFailed,
    GoalContinued,
    GoalJudged,
    ModelHealed,
    ModelRetrying,
    ModelSwitched,
    NoticePosted,
    TitleChanged,
    TodosChanged,
    UsageMetered,
    UsageRecorded,
)
from copilot.events.session import (
    AccountClosed,
    ArtifactAdded,
    ArtifactRemoved,
    ExportFinished,
    LimitReached,
    MessageAdded,
    QueueChanged,
    SessionChanged,
    SessionSnapshot,
)
from copilot.events.tools import (
    ApprovalDecided,
    ApprovalRequested,
    FollowUpDelivered,
    QuestionAsked,
    QuestionClosed,
    ToolCalled,
    ToolFinished,
    ToolProgressed,
    ToolProposed,
    ToolState,
    ToolStateChanged,
)
from copilot.events.turn import (
    CancelReason,
    Phase,
    ReasoningEnded,
    ReasoningExtended,
    ReasoningStarted,
    StepFinished,
    StepRetracted,
    StepStarted,
    TextEnded,
    TextExtended,
    TextStarted,
    ThrottleReason,
    TurnCancelled,
    TurnFailed,
    TurnHeartbeat,
    TurnPaused,
    TurnQueued,
    TurnRecovering,
    TurnStarted,
    TurnSucceeded,
    TurnSummary,
    TurnThrottled,
)
from copilot.events.views import (
    JSON,
    ApprovalView,
    ArtifactView,
    AttachmentView,
    AutoApproveView,
    Content,
    ContextUse,
    ContextView,
    GoalState,
    GoalView,
    HealingKind,
    MessageView,
    NoticeContent,
    QuestionView,
    QueueItem,
    Role,
    RowKind,
    SessionState,
    Todo,
    Tokens,
    ToolCallContent,
    ToolResultContent,
    TurnView,
    instant,
    tool_label,
)

__all__ = [
    "CLASSES",
    "ENDING_KINDS",
    "JSON",
    "AccountClosed",
    "ApprovalDecided",
    "ApprovalRequested",
    "ApprovalView",
    "ArtifactAdded",
    "ArtifactRemoved",
    "ArtifactView",
    "AttachmentView",
    "AutoApproveView",
    "CancelReason",
    "Content",
    "ContextCompacted",
    "ContextCompacting",
    "ContextCompactionFailed",
    "ContextUse",
    "ContextView",
    "Ending",
    "Event",
    "ExportFinished",
    "FollowUpDelivered",
    "GoalContinued",
    "GoalJudged",
    "GoalState",
    "GoalView",
    "HealingKind",
    "LimitReached",
    "MessageAdded",
    "MessageView",
    "ModelHealed",
    "ModelRetrying",
    "ModelSwitched",
    "NoticeContent",
    "NoticePosted",
    "Phase",
    "QuestionAsked",
    "QuestionClosed",
    "QuestionView",
    "QueueChanged",
    "QueueItem",
    "ReasoningEnded",
    "ReasoningExtended",
    "ReasoningStarted",
    "Role",
    "RowKind",
    "SessionChanged",
    "SessionSnapshot",
    "SessionState",
    "SideEnded",
    "SideExtended",
    "SideStarted",
    "StepFinished",
    "StepRetracted",
    "StepStarted",
    "TextEnded",
    "TextExtended",
    "TextStarted",
    "ThrottleReason",
    "TitleChanged",
    "Todo",
    "TodosChanged",
    "Tokens",
    "ToolCallContent",
    "ToolCalled",
    "ToolFinished",
    "ToolProgressed",
    "ToolProposed",
    "ToolResultContent",
    "ToolState",
    "ToolStateChanged",
    "TurnCancelled",
    "TurnFailed",
    "TurnHeartbeat",
    "TurnPaused",
    "TurnQueued",
    "TurnRecovering",
    "TurnStarted",
    "TurnSucceeded",
    "TurnSummary",
    "TurnThrottled",
    "TurnView",
    "UsageMetered",
    "UsageRecorded",
    "decode",
    "encode",
    "instant",
    "place",
    "tool_label",
]

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
    | SideStarted
    | SideExtended
    | SideEnded
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
