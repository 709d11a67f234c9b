"""What the loop needs of the world, each need with an in-memory double beside it (A2.1)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID, uuid4

from copilot.agent.parts import Asked, Compacted, CompactionFailed, ModelCallEnded, Produced
from copilot.events import Event
from copilot.providers.base import (
    Entry,
    FailureCode,
    ModelMessage,
    Provider,
    ToolCall,
    ToolSpecification,
    UserMessage,
)
from copilot.providers.lessons import Lesson, Lessons
from copilot.tools.base import CallOutcome

T = TypeVar("T")
Emit = Callable[[Event], None]


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Toolbox(Protocol):
    def specifications(self) -> tuple[ToolSpecification, ...]:
        """The tools offered in this turn, in the order of the tool array (A15.2)."""
        ...

    def polling(self) -> frozenset[str]:
        """Names of the tools that may answer the same again and again (A10.2)."""
        ...

    def run(self, calls: Sequence[ToolCall], emit: Emit, *, taken: int = 0) -> AsyncIterator[CallOutcome]:
        """Outcomes as they finish. Closing the iterator cancels what still runs.

        `taken` characters of what the group may give the model are for its other calls (A9.6).
        """
        ...


class Approvals(Protocol):
    async def judge(self, calls: Sequence[ToolCall]) -> tuple[Asked, ...]:
        """Which of these a person must be asked about, in their order; the others may run at once."""
        ...


class FollowUps(Protocol):
    async def take(self) -> tuple[UserMessage, ...]:
        """At a tool boundary: what people said meanwhile. Their rows stand when this returns (A13.4)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Spending:
    """What a turn and its children have taken, and what they may take, in microdollars (A10.4)."""

    spent: int = 0
    reserved: int = 0  # promised to children that still run
    budget: int = 0  # 0 = none
    limit: str = ""  # why the user's own limit lets nothing more be spent, in words for people (B6.10)


class Budget(Protocol):
    async def spending(self) -> Spending:
        """As recorded now: the cost of every call that has ended is in it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """A conversation that must become shorter."""

    entry: Entry  # who summarises it, and reads it afterwards
    messages: tuple[ModelMessage, ...]
    fixed_tokens: int  # system text and tools: no summary shortens them
    tokens_before: int
    forced: bool  # the model has refused it already: little gained is nothing gained (A7.5)
    focus: str = ""  # what a person asked to keep above all


class TakeNumber(Protocol):
    async def __call__(self, *, again: bool = False) -> int | None:
        """The number of the next model call; None when a further try is not to be."""
        ...


class Compactor(Protocol):
    def compact(
        self, task: Compaction, take_number: TakeNumber
    ) -> AsyncIterator[Produced | Compacted | CompactionFailed]:
        """Its model calls and the summary's row, then the shorter conversation or why there is none."""
        ...

    def open_call(self) -> ModelCallEnded | None:
        """The end of a model call that was cut off (A19.5)."""
        ...


class Learned(Protocol):
    def recall(self, entry: Entry) -> Lesson: ...

    def learn(self, entry: Entry, lesson: Lesson) -> None: ...


class Health(Protocol):
    def tripped(self, entry: Entry) -> FailureCode | None:
        """Why turns begin with another model than `entry` for now."""
        ...

    def failed(self, entry: Entry, code: FailureCode) -> None:
        """The turn has given `entry` up; the third such word within a minute trips it for all (A7.7)."""
        ...


async def same_credential(entry: Entry) -> str:
    """For those whose keys never change."""
    return entry.credential


class MemoryBudget:
    """Costs as a list: each look finds one more of them spent."""

    def __init__(self, *costs: int, budget: int = 0, limit_after: int | None = None) -> None:
        self.looks = 0
        self._costs = costs
        self._budget = budget
        self._limit_after = limit_after  # looks after which the user's own limit is reached

    async def spending(self) -> Spending:
        self.looks += 1
        reached = self._limit_after is not None and self.looks > self._limit_after
        return Spending(
            spent=sum(self._costs[: self.looks]), budget=self._budget, limit="Reached." if reached else ""
        )


@dataclass(kw_only=True)
class MemoryHealth:
    """Models that keep failing, by name, and what was said of others."""

    failing: Mapping[str, FailureCode] = field(default_factory=dict)
    reported: list[tuple[str, FailureCode]] = field(default_factory=list)

    def tripped(self, entry: Entry) -> FailureCode | None:
        return self.failing.get(entry.name)

    def failed(self, entry: Entry, code: FailureCode) -> None:
        self.reported.append((entry.name, code))


class MemoryCompactor:
    """Gives one prepared outcome after the other, then fails."""

    def __init__(self, *outcomes: Compacted | CompactionFailed) -> None:
        self.tasks: list[Compaction] = []
        self._outcomes = deque(outcomes)

    async def compact(
        self, task: Compaction, take_number: TakeNumber
    ) -> AsyncIterator[Produced | Compacted | CompactionFailed]:
        self.tasks.append(task)
        await take_number()
        yield self._outcomes.popleft() if self._outcomes else CompactionFailed(reason="nothing prepared")

    def open_call(self) -> ModelCallEnded | None:
        return None


@dataclass(frozen=True, kw_only=True)
class Ports:
    provider: Callable[[Entry], Provider]
    toolbox: Toolbox
    follow_ups: FollowUps
    clock: Clock
    approvals: Approvals = field(default_factory=lambda: MemoryApprovals())  # noqa: PLW0108 - it stands below
    budget: Budget = field(default_factory=MemoryBudget)
    compactor: Compactor = field(default_factory=MemoryCompactor)
    call_id: Callable[[int], UUID] = lambda number: uuid4()  # the id of the model call of this number
    learned: Learned = field(default_factory=Lessons)
    health: Health = field(default_factory=MemoryHealth)
    credential: Callable[[Entry], Awaitable[str]] = same_credential  # as the store has it now (A7.4)


@asynccontextmanager
async def closed(iterator: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
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


# --- doubles -----------------------------------------------------------------------------------------


class ManualClock:
    """Time passes only by sleeping, and sleeping takes none."""

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


Answering = Callable[[ToolCall, Emit], Awaitable[CallOutcome]]


@dataclass(kw_only=True)
class MemoryToolbox:
    """Tools as functions; all calls of a group run at once."""

    tools: Mapping[str, Answering] = field(default_factory=dict)
    required: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    polled: frozenset[str] = frozenset()
    ran: list[ToolCall] = field(default_factory=list)

    def specifications(self) -> tuple[ToolSpecification, ...]:
        return tuple(
            ToolSpecification(
                name=name,
                description=name,
                parameters={"type": "object", "required": list(self.required.get(name, ()))},
            )
            for name in self.tools
        )

    def polling(self) -> frozenset[str]:
        return self.polled

    async def run(
        self, calls: Sequence[ToolCall], emit: Emit, *, taken: int = 0
    ) -> AsyncIterator[CallOutcome]:
        self.ran.extend(calls)
        tasks = [asyncio.ensure_future(self.tools[call.tool](call, emit)) for call in calls]
        try:
            for finished in asyncio.as_completed(tasks):
                yield await finished
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(kw_only=True)
class MemoryApprovals:
    """Asks for the tools that are named, each with its reason."""

    asks: Mapping[str, str] = field(default_factory=dict)
    judged: list[ToolCall] = field(default_factory=list)

    async def judge(self, calls: Sequence[ToolCall]) -> tuple[Asked, ...]:
        self.judged.extend(calls)
        return tuple(
            Asked(call=call, reason=self.asks[call.tool]) for call in calls if call.tool in self.asks
        )


class MemoryFollowUps:
    """Each `take` gives one prepared boundary, then nothing."""

    def __init__(self, boundaries: Iterable[tuple[UserMessage, ...]] = ()) -> None:
        self._boundaries = deque(boundaries)

    async def take(self) -> tuple[UserMessage, ...]:
        return self._boundaries.popleft() if self._boundaries else ()
