"""Define the ports of the loop, with in-memory doubles for tests."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID, uuid4

from copilot.agent.outputs import (
    ApprovalNeeded,
    CompactionFailed,
    CompactionSucceeded,
    LoopOutput,
    ModelCallEnded,
)
from copilot.providers.base import (
    CatalogueEntry,
    FailureCode,
    ModelMessage,
    Provider,
    ToolCall,
    ToolSpecification,
    UserMessage,
)
from copilot.providers.learned_limits import LearnedLimits, LearnedLimitsCache
from copilot.realtime.events import Event
from copilot.tools.base import ToolCallOutcome

T = TypeVar("T")
EmitEvent = Callable[[Event], None]


class Clock(Protocol):
    def now(self) -> float:
        """Return seconds of a clock that never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Toolbox(Protocol):
    def specifications(self) -> tuple[ToolSpecification, ...]:
        """Return the tools offered in this turn, in the order of the request's tool array."""
        ...

    def list_polling_tools(self) -> frozenset[str]:
        """Return the tools that may give the same result again and again without being stuck."""
        ...

    def run_calls(
        self, calls: Sequence[ToolCall], emit: EmitEvent, *, taken: int = 0
    ) -> AsyncIterator[ToolCallOutcome]:
        """Yield outcomes as they finish. Closing the iterator cancels what still runs.

        `taken` characters of the group's output limit are reserved for its other calls.
        """
        ...


class ApprovalPolicy(Protocol):
    async def select_calls_to_approve(self, calls: Sequence[ToolCall]) -> tuple[ApprovalNeeded, ...]:
        """Return the calls that need a person's approval, in order; the others may run at once."""
        ...


class FollowUpSource(Protocol):
    async def take_follow_ups(self) -> tuple[UserMessage, ...]:
        """Take queued messages at a tool boundary. Their rows are stored when this returns."""
        ...


@dataclass(frozen=True, kw_only=True)
class BudgetStatus:
    """The spending of a turn and its children, and its limits, in microdollars."""

    spent: int = 0
    reserved: int = 0  # for children that still run
    budget: int = 0  # 0 = none
    limit: str = ""  # the message of the user's own limit, if it is reached


class Budget(Protocol):
    async def read_spending(self) -> BudgetStatus:
        """Return the spending as recorded, including every call that has ended."""
        ...


@dataclass(frozen=True, kw_only=True)
class CompactionTask:
    entry: CatalogueEntry  # the model that writes the summary and reads it afterwards
    messages: tuple[ModelMessage, ...]
    fixed_tokens: int  # of the system prompt and tools, which no summary shortens
    tokens_before: int
    forced: bool  # the model has refused the context, so a small gain is not enough
    focus: str = ""  # what a person asked to keep


class TakeCallNumber(Protocol):
    async def __call__(self, *, again: bool = False) -> int | None:
        """Return the number of the next model call; None when another try is not allowed."""
        ...


class Compactor(Protocol):
    def compact(
        self, task: CompactionTask, take_number: TakeCallNumber
    ) -> AsyncIterator[LoopOutput | CompactionSucceeded | CompactionFailed]:
        """Yield the model calls and the summary's row, then the shorter context or a failure."""
        ...

    def unrecorded_call(self) -> ModelCallEnded | None: ...


class LearnedLimitsStore(Protocol):
    def recall(self, entry: CatalogueEntry) -> LearnedLimits: ...

    def learn(self, entry: CatalogueEntry, lesson: LearnedLimits) -> None: ...


class ModelHealth(Protocol):
    def open_breaker_code(self, entry: CatalogueEntry) -> FailureCode | None: ...

    def report_failure(self, entry: CatalogueEntry, code: FailureCode) -> None:
        """Count a failure of `entry` that the turn could not recover from, towards its circuit breaker."""
        ...


async def keep_credential(entry: CatalogueEntry) -> str:
    return entry.credential


class InMemoryBudget:
    """Spend one more of the given costs at each read."""

    def __init__(self, *costs: int, budget: int = 0, limit_after: int | None = None) -> None:
        self.reads = 0
        self._costs = costs
        self._budget = budget
        self._limit_after = limit_after  # reads after which the user's own limit is reached

    async def read_spending(self) -> BudgetStatus:
        self.reads += 1
        reached = self._limit_after is not None and self.reads > self._limit_after
        return BudgetStatus(
            spent=sum(self._costs[: self.reads]), budget=self._budget, limit="Reached." if reached else ""
        )


@dataclass(kw_only=True)
class InMemoryModelHealth:
    failing: Mapping[str, FailureCode] = field(default_factory=dict)
    reported: list[tuple[str, FailureCode]] = field(default_factory=list)

    def open_breaker_code(self, entry: CatalogueEntry) -> FailureCode | None:
        return self.failing.get(entry.name)

    def report_failure(self, entry: CatalogueEntry, code: FailureCode) -> None:
        self.reported.append((entry.name, code))


class InMemoryCompactor:
    """Return one prepared outcome after the other, then fail."""

    def __init__(self, *outcomes: CompactionSucceeded | CompactionFailed) -> None:
        self.tasks: list[CompactionTask] = []
        self._outcomes = deque(outcomes)

    async def compact(
        self, task: CompactionTask, take_number: TakeCallNumber
    ) -> AsyncIterator[LoopOutput | CompactionSucceeded | CompactionFailed]:
        self.tasks.append(task)
        await take_number()
        yield self._outcomes.popleft() if self._outcomes else CompactionFailed(reason="nothing prepared")

    def unrecorded_call(self) -> ModelCallEnded | None:
        return None


@dataclass(frozen=True, kw_only=True)
class LoopPorts:
    provider: Callable[[CatalogueEntry], Provider]
    toolbox: Toolbox
    follow_ups: FollowUpSource
    clock: Clock
    approvals: ApprovalPolicy = field(default_factory=lambda: InMemoryApprovalPolicy())  # noqa: PLW0108 - defined below
    budget: Budget = field(default_factory=InMemoryBudget)
    compactor: Compactor = field(default_factory=InMemoryCompactor)
    call_id: Callable[[int], UUID] = lambda number: uuid4()  # the id of the model call of this number
    learned: LearnedLimitsStore = field(default_factory=LearnedLimitsCache)
    health: ModelHealth = field(default_factory=InMemoryModelHealth)
    credential: Callable[[CatalogueEntry], Awaitable[str]] = keep_credential  # reads the stored key again


@asynccontextmanager
async def aclosing_iterator(iterator: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close `iterator` on every exit: an abandoned generator holds its resources until it is collected."""
    try:
        yield iterator
    finally:
        if isinstance(iterator, AsyncGenerator):
            await iterator.aclose()


class SystemClock:
    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(kw_only=True)
class InMemoryApprovalPolicy:
    """Ask about the tools in `asks`, which gives a reason for each."""

    asks: Mapping[str, str] = field(default_factory=dict)
    judged: list[ToolCall] = field(default_factory=list)

    async def select_calls_to_approve(self, calls: Sequence[ToolCall]) -> tuple[ApprovalNeeded, ...]:
        self.judged.extend(calls)
        return tuple(
            ApprovalNeeded(call=call, reason=self.asks[call.tool]) for call in calls if call.tool in self.asks
        )
