"""The model, its context, usage, notices and what else the page shows (A2.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from copilot.events.views import GoalState, HealingKind, MessageView, Todo, Tokens


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
    message: MessageView | None = None
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
    message: MessageView | None = None  # the divider
    kind: Literal["context.compacted"] = "context.compacted"


@dataclass(frozen=True, kw_only=True)
class ContextCompactionFailed:
    reason: str
    tokens_before: int
    window: int
    kind: Literal["context.compaction_failed"] = "context.compaction_failed"


@dataclass(frozen=True, kw_only=True)
class GoalJudged:
    """By a model after a turn, or by the person whose goal it is."""

    state: GoalState
    reason: str
    text: str = ""  # the goal itself; empty where nothing but its state has changed
    kind: Literal["goal.judged"] = "goal.judged"


@dataclass(frozen=True, kw_only=True)
class GoalContinued:
    state: Literal["active"]
    reason: str
    number: int
    most: int
    kind: Literal["goal.continued"] = "goal.continued"
