"""In-memory stand-ins for what the agent loop needs: its output, tools, budget, compactor and so on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from copilot.agent.interfaces import BudgetStatus, CompactionTask, EmitEvent, OutputSink, TakeCallNumber
from copilot.agent.outputs import (
    ApprovalNeeded,
    CompactionFailed,
    CompactionSucceeded,
    LoopOutput,
    ModelCallEnded,
)
from copilot.providers.base import CatalogueEntry, FailureCode, ToolCall, ToolSpecification, UserMessage
from copilot.tools.base import ToolCallOutcome


class CollectedOutput:
    """Keep everything that a loop emits, and call `on_emit` with all of it after each part."""

    def __init__(self) -> None:
        self.parts: list[LoopOutput] = []
        self.on_emit: Callable[[list[LoopOutput]], None] = lambda parts: None

    async def emit(self, part: LoopOutput) -> None:
        self.parts.append(part)
        self.on_emit(self.parts)


class ManualClock:
    """A clock that advances only by sleeping, which takes no time."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self.slept: list[float] = []

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)


FakeToolFunction = Callable[[ToolCall, EmitEvent], Awaitable[ToolCallOutcome]]


@dataclass(kw_only=True)
class InMemoryToolbox:
    """Run functions as tools; all calls of a group run at once."""

    tools: Mapping[str, FakeToolFunction] = field(default_factory=dict)
    required: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    polled: frozenset[str] = frozenset()
    client_tools: frozenset[str] = frozenset()
    ran: list[ToolCall] = field(default_factory=list)

    def specifications(self) -> tuple[ToolSpecification, ...]:
        return tuple(
            ToolSpecification(
                name=name,
                description=name,
                parameters={"type": "object", "required": list(self.required.get(name, ()))},
            )
            for name in (*self.tools, *self.client_tools)
        )

    def list_polling_tools(self) -> frozenset[str]:
        return self.polled

    def list_client_tools(self) -> frozenset[str]:
        return self.client_tools

    async def run_calls(
        self, calls: Sequence[ToolCall], emit: EmitEvent, *, taken: int = 0
    ) -> AsyncIterator[ToolCallOutcome]:
        self.ran.extend(calls)
        tasks = [asyncio.ensure_future(self.tools[call.tool](call, emit)) for call in calls]
        try:
            for finished in asyncio.as_completed(tasks):
                yield await finished
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class InMemoryFollowUps:
    """Return one prepared boundary per `take`, then nothing."""

    def __init__(self, boundaries: Iterable[tuple[UserMessage, ...]] = ()) -> None:
        self._boundaries = deque(boundaries)

    async def take_follow_ups(self) -> tuple[UserMessage, ...]:
        return self._boundaries.popleft() if self._boundaries else ()


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
        self, task: CompactionTask, take_number: TakeCallNumber, output: OutputSink
    ) -> CompactionSucceeded | CompactionFailed:
        self.tasks.append(task)
        await take_number()
        return self._outcomes.popleft() if self._outcomes else CompactionFailed(reason="nothing prepared")

    def unrecorded_call(self) -> ModelCallEnded | None:
        return None


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
