from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from copilot.agent.interfaces import EmitEvent
from copilot.providers.base import ToolCall, ToolSpecification, UserMessage
from copilot.tools.base import ToolCallOutcome

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


FakeToolFunction = Callable[[ToolCall, EmitEvent], Awaitable[ToolCallOutcome]]


@dataclass(kw_only=True)
class InMemoryToolbox:
    """Tools as functions; all calls of a group run at once."""

    tools: Mapping[str, FakeToolFunction] = field(default_factory=dict)
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

    def list_polling_tools(self) -> frozenset[str]:
        return self.polled

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
    """Each `take` gives one prepared boundary, then nothing."""

    def __init__(self, boundaries: Iterable[tuple[UserMessage, ...]] = ()) -> None:
        self._boundaries = deque(boundaries)

    async def take_follow_ups(self) -> tuple[UserMessage, ...]:
        return self._boundaries.popleft() if self._boundaries else ()
