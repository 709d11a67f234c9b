"""One tool group at work: calls become rows, results come as they finish, and every call gets one (A9.2–A9.4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from copilot.agent.conversation import result_of
from copilot.agent.guards import digest
from copilot.agent.parts import Asked, CallMade, Produced, ResultMade
from copilot.agent.ports import Ports, closed
from copilot.events import Event, QuestionAsked, QuestionClosed, ToolStateChanged
from copilot.providers.base import ModelMessage, ToolCall, ToolGroup
from copilot.tools.base import LEAST_CHARACTERS, CallOutcome
from copilot.tools.calls import FAILED_BEFORE_IT_RAN, error_outcome, refusal

POINTED_AT_CHARACTERS = (
    2_000  # a shorter output costs little more than the words that would stand for it (A9.8)
)
SAME_OUTPUT = (
    'The same output, to the character, as that of an earlier call of yours ({tool}, call_id "{call_id}"), which you '
    "have in this conversation: nothing has changed since."
)
ABANDON_SECONDS = 1.0  # a tool that ignores its cancellation is not waited for any longer (A1.7)


@dataclass(frozen=True, kw_only=True)
class OpenCall:
    """A call without a result. Unless it was `made`, its row has yet to be stored (A3.5)."""

    row_id: UUID
    call: ToolCall
    made: bool


class ToolRun:
    """The calls of one reply, run together; those in `asked` wait for a person, the others run first (A11.3).

    `refused` answers all of them instead of running any; `notes` go in front of results, by call id; `before` is
    the conversation that the model still has.
    """

    def __init__(
        self,
        calls: Sequence[ToolCall],
        ports: Ports,
        *,
        most: int,
        refused: str = "",
        notes: Mapping[str, str] | None = None,
        before: Sequence[ModelMessage] = (),
    ) -> None:
        self.calls = tuple(calls)
        self.asked: tuple[Asked, ...] = ()
        self.questions = False  # one of the tools waits for a person's answer
        self.outcomes: dict[str, CallOutcome] = {}  # as they came
        self._told: dict[str, CallOutcome] = {}  # as the model reads them
        self._before = before
        self.rows = {call.call_id: uuid4() for call in calls}
        self._toolbox = ports.toolbox
        self._approvals = ports.approvals
        self._notes = notes or {}
        self._most = most
        self._refused = refused
        self._resumes = False
        self._made: set[str] = set()
        self._done: set[str] = set()

    def open_calls(self) -> tuple[OpenCall, ...]:
        return tuple(
            OpenCall(row_id=self.rows[call.call_id], call=call, made=call.call_id in self._made)
            for call in self.calls
            if call.call_id not in self._done
        )

    def group(self) -> ToolGroup:
        return ToolGroup(results=tuple(result_of(self._told[call.call_id]) for call in self.calls))

    def make_calls(self) -> Iterator[Produced]:
        for call in self.calls:
            yield CallMade(row_id=self.rows[call.call_id], call=call)
            self._made.add(call.call_id)

    def calls_stand(self) -> None:
        """The rows of the calls were stored by an earlier run of the turn."""
        self._made.update(self.rows)
        self._resumes = True

    async def play(self) -> AsyncIterator[Produced]:
        usable: list[ToolCall] = []
        for position, call in enumerate(self.calls):
            if message := self._refusal(position, call):
                for made in self._finish(error_outcome(call, message)):
                    yield made
            else:
                usable.append(call)
        judged = await self._approvals.judge(usable) if usable else ()
        self.asked = tuple(one for one in judged if not one.refusal)
        for one in judged:
            if one.refusal:
                for made in self._finish(error_outcome(one.call, one.refusal)):
                    yield made
        waiting = {asked.call.call_id for asked in self.asked}
        stopped = {one.call.call_id for one in judged}
        async with closed(self._run([call for call in usable if call.call_id not in stopped])) as parts:
            async for part in parts:
                for made in self._finish(part) if isinstance(part, CallOutcome) else (part,):
                    yield made
        for call in self.calls:
            if call.call_id not in waiting:
                for made in self._finish(error_outcome(call, FAILED_BEFORE_IT_RAN)):
                    yield made
        for asked in self.asked:
            yield ToolStateChanged(call_id=asked.call.call_id, state="waiting")

    def _refusal(self, position: int, call: ToolCall) -> str | None:
        known = [specification.name for specification in self._toolbox.specifications()]
        return self._refused or refusal(call, position=position, most=self._most, known=known)

    def _finish(self, outcome: CallOutcome) -> Iterator[Produced]:
        """One result per call: a second one, or one nobody asked for, is dropped (A9.8)."""
        if outcome.call_id in self.outcomes or outcome.call_id not in self.rows:
            return
        if note := self._notes.get(outcome.call_id):
            outcome = replace(outcome, content=note + outcome.content)
        self.outcomes[outcome.call_id] = outcome
        self._told[outcome.call_id] = told = self._pointing(outcome)
        yield ResultMade(row_id=uuid4(), outcome=told)
        self._done.add(outcome.call_id)

    def _pointing(self, outcome: CallOutcome) -> CallOutcome:
        """What the model has read already is named instead of said again; people still see it (A9.8)."""
        if len(outcome.content) < POINTED_AT_CHARACTERS or outcome.media:
            return outcome
        results = (result for m in self._before if isinstance(m, ToolGroup) for result in m.results)
        same = (one for one in results if one.content == outcome.content and one.success == outcome.success)
        if (earlier := next(same, None)) is None:
            return outcome
        pointer = SAME_OUTPUT.format(tool=earlier.tool, call_id=earlier.call_id)
        return replace(outcome, content=pointer, digest=digest(outcome))

    def _taken(self) -> int:
        """Characters that the group's other calls have had, if they ran before a pause, or must be left (A9.6)."""
        last = next((one for one in reversed(self._before) if isinstance(one, ToolGroup)), None)
        earlier = last.results if last is not None and self._resumes else ()
        had = sum(len(one.content) for one in earlier if one.call_id not in self.rows)
        return had + LEAST_CHARACTERS * len(self.asked)

    async def _run(self, calls: Sequence[ToolCall]) -> AsyncIterator[Event | CallOutcome]:
        """Outcomes and what the tools say meanwhile, in the order in which they come."""
        if not calls:
            return
        arrived: asyncio.Queue[Event | CallOutcome | None] = asyncio.Queue()
        work = asyncio.create_task(self._pump(calls, arrived))
        try:
            while (part := await arrived.get()) is not None:
                if isinstance(part, QuestionAsked | QuestionClosed):
                    self.questions = isinstance(part, QuestionAsked)
                yield part
            await work
        finally:
            work.cancel()
            await asyncio.wait({work}, timeout=ABANDON_SECONDS)

    async def _pump(
        self, calls: Sequence[ToolCall], arrived: asyncio.Queue[Event | CallOutcome | None]
    ) -> None:
        try:
            running = self._toolbox.run(calls, arrived.put_nowait, taken=self._taken())
            async with closed(running) as outcomes:
                async for outcome in outcomes:
                    arrived.put_nowait(outcome)
        finally:
            arrived.put_nowait(None)
