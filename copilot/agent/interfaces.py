"""What the loop needs of the world, each need with an in-memory double beside it (A2.1)."""

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
        """Seconds on a clock that never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Toolbox(Protocol):
    def specifications(self) -> tuple[ToolSpecification, ...]:
        """The tools offered in this turn, in the order of the tool array (A15.2)."""
        ...

    def list_polling_tools(self) -> frozenset[str]:
        """Names of the tools that may answer the same again and again (A10.2)."""
        ...

    def run_calls(
        self, calls: Sequence[ToolCall], emit: EmitEvent, *, taken: int = 0
    ) -> AsyncIterator[ToolCallOutcome]:
        """Outcomes as they finish. Closing the iterator cancels what still runs.

        `taken` characters of what the group may give the model are for its other calls (A9.6).
        """
        ...


class ApprovalPolicy(Protocol):
    async def select_calls_to_approve(self, calls: Sequence[ToolCall]) -> tuple[ApprovalNeeded, ...]:
        """Which of these a person must be asked about, in their order; the others may run at once."""
        ...


class FollowUpSource(Protocol):
    async def take_follow_ups(self) -> tuple[UserMessage, ...]:
        """At a tool boundary: what people said meanwhile. Their rows stand when this returns (A13.4)."""
        ...


@dataclass(frozen=True, kw_only=True)
class BudgetStatus:
    """What a turn and its children have taken, and what they may take, in microdollars (A10.4)."""

    spent: int = 0
    reserved: int = 0  # promised to children that still run
    budget: int = 0  # 0 = none
    limit: str = ""  # why the user's own limit lets nothing more be spent, in words for people (B6.10)


class Budget(Protocol):
    async def read_spending(self) -> BudgetStatus:
        """As recorded now: the cost of every call that has ended is in it."""
        ...


@dataclass(frozen=True, kw_only=True)
class CompactionTask:
    """A conversation that must become shorter."""

    entry: CatalogueEntry  # who summarises it, and reads it afterwards
    messages: tuple[ModelMessage, ...]
    fixed_tokens: int  # system text and tools: no summary shortens them
    tokens_before: int
    forced: bool  # the model has refused it already: little gained is nothing gained (A7.5)
    focus: str = ""  # what a person asked to keep above all


class TakeCallNumber(Protocol):
    async def __call__(self, *, again: bool = False) -> int | None:
        """The number of the next model call; None when a further try is not to be."""
        ...


class Compactor(Protocol):
    def compact(
        self, task: CompactionTask, take_number: TakeCallNumber
    ) -> AsyncIterator[LoopOutput | CompactionSucceeded | CompactionFailed]:
        """Its model calls and the summary's row, then the shorter conversation or why there is none."""
        ...

    def unrecorded_call(self) -> ModelCallEnded | None:
        """The end of a model call that was cut off (A19.5)."""
        ...


class LearnedLimitsStore(Protocol):
    def recall(self, entry: CatalogueEntry) -> LearnedLimits: ...

    def learn(self, entry: CatalogueEntry, lesson: LearnedLimits) -> None: ...


class ModelHealth(Protocol):
    def open_breaker_code(self, entry: CatalogueEntry) -> FailureCode | None:
        """Why turns begin with another model than `entry` for now."""
        ...

    def report_failure(self, entry: CatalogueEntry, code: FailureCode) -> None:
        """The turn has given `entry` up; the third such word within a minute trips it for all (A7.7)."""
        ...


async def keep_credential(entry: CatalogueEntry) -> str:
    """For those whose keys never change."""
    return entry.credential


class InMemoryBudget:
    """Costs as a list: each look finds one more of them spent."""

    def __init__(self, *costs: int, budget: int = 0, limit_after: int | None = None) -> None:
        self.looks = 0
        self._costs = costs
        self._budget = budget
        self._limit_after = limit_after  # looks after which the user's own limit is reached

    async def read_spending(self) -> BudgetStatus:
        self.looks += 1
        reached = self._limit_after is not None and self.looks > self._limit_after
        return BudgetStatus(
            spent=sum(self._costs[: self.looks]), budget=self._budget, limit="Reached." if reached else ""
        )


@dataclass(kw_only=True)
class InMemoryModelHealth:
    """Models that keep failing, by name, and what was said of others."""

    failing: Mapping[str, FailureCode] = field(default_factory=dict)
    reported: list[tuple[str, FailureCode]] = field(default_factory=list)

    def open_breaker_code(self, entry: CatalogueEntry) -> FailureCode | None:
        return self.failing.get(entry.name)

    def report_failure(self, entry: CatalogueEntry, code: FailureCode) -> None:
        self.reported.append((entry.name, code))


class InMemoryCompactor:
    """Gives one prepared outcome after the other, then fails."""

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
    approvals: ApprovalPolicy = field(default_factory=lambda: InMemoryApprovalPolicy())  # noqa: PLW0108 - it stands below
    budget: Budget = field(default_factory=InMemoryBudget)
    compactor: Compactor = field(default_factory=InMemoryCompactor)
    call_id: Callable[[int], UUID] = lambda number: uuid4()  # the id of the model call of this number
    learned: LearnedLimitsStore = field(default_factory=LearnedLimitsCache)
    health: ModelHealth = field(default_factory=InMemoryModelHealth)
    credential: Callable[[CatalogueEntry], Awaitable[str]] = keep_credential  # as the store has it now (A7.4)


@asynccontextmanager
async def aclosing_iterator(iterator: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close `iterator` on every way out: an abandoned generator holds its resources until collected (A1.6)."""
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
    """Asks for the tools that are named, each with its reason."""

    asks: Mapping[str, str] = field(default_factory=dict)
    judged: list[ToolCall] = field(default_factory=list)

    async def select_calls_to_approve(self, calls: Sequence[ToolCall]) -> tuple[ApprovalNeeded, ...]:
        self.judged.extend(calls)
        return tuple(
            ApprovalNeeded(call=call, reason=self.asks[call.tool]) for call in calls if call.tool in self.asks
        )
