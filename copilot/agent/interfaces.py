"""Define what the loop needs from the rest of the product: its output, tools, budget, clock and so on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar
from uuid import UUID

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
from copilot.providers.learned_limits import LearnedLimits
from copilot.realtime.events import Event
from copilot.tools.base import ToolCallOutcome

T = TypeVar("T")
EmitEvent = Callable[[Event], None]


class OutputSink(Protocol):
    async def emit(self, part: LoopOutput) -> None:
        """Take one part of the turn's output. When this returns, the part is recorded."""
        ...


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

    def list_client_tools(self) -> frozenset[str]:
        """Return the tools that the caller of the API runs itself."""
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
    async def compact(
        self, task: CompactionTask, take_number: TakeCallNumber, output: OutputSink
    ) -> CompactionSucceeded | CompactionFailed:
        """Emit the model calls and the summary's row, and return the shorter context or a failure."""
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


@dataclass(frozen=True, kw_only=True)
class LoopPorts:
    output: OutputSink
    provider: Callable[[CatalogueEntry], Provider]
    toolbox: Toolbox
    approvals: ApprovalPolicy
    follow_ups: FollowUpSource
    budget: Budget
    compactor: Compactor
    clock: Clock
    call_id: Callable[[int], UUID]  # the id of the model call of this number
    learned: LearnedLimitsStore
    health: ModelHealth
    credential: Callable[[CatalogueEntry], Awaitable[str]]  # reads the stored key again


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
