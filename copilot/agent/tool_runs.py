"""One tool group at work: calls become rows, results come as they finish, and every call gets one (A9.2–A9.4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from copilot.agent.guards import digest_outcome
from copilot.agent.interfaces import LoopPorts, aclosing_iterator
from copilot.agent.model_context import build_tool_result
from copilot.agent.outputs import ApprovalNeeded, LoopOutput, ToolCallAdded, ToolResultAdded
from copilot.providers.base import ModelMessage, ToolCall, ToolResultsMessage
from copilot.realtime.events import Event, QuestionAsked, QuestionClosed, ToolStateChanged
from copilot.tools.base import MIN_RESULT_CHARACTERS, ToolCallOutcome
from copilot.tools.calls import REPLY_BROKEN_OFF_MESSAGE, find_refusal, make_error_outcome

MIN_REPEATED_OUTPUT_CHARACTERS = (
    2_000  # a shorter output costs little more than the words that would stand for it (A9.8)
)
REPEATED_OUTPUT_NOTE = (
    'The same output, to the character, as that of an earlier call of yours ({tool}, call_id "{call_id}"), which you '
    "have in this conversation: nothing has changed since."
)
CANCEL_TIMEOUT_SECONDS = 1.0  # a tool that ignores its cancellation is not waited for any longer (A1.7)


@dataclass(frozen=True, kw_only=True)
class UnfinishedCall:
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
        ports: LoopPorts,
        *,
        most: int,
        refused: str = "",
        notes: Mapping[str, str] | None = None,
        before: Sequence[ModelMessage] = (),
    ) -> None:
        self.calls = tuple(calls)
        self.calls_to_approve: tuple[ApprovalNeeded, ...] = ()
        self.is_asking_question = False  # one of the tools waits for a person's answer
        self.outcomes: dict[str, ToolCallOutcome] = {}  # as they came
        self._model_outcomes: dict[str, ToolCallOutcome] = {}  # as the model reads them
        self._before = before
        self.rows = {call.call_id: uuid4() for call in calls}
        self._toolbox = ports.toolbox
        self._approvals = ports.approvals
        self._notes = notes or {}
        self._most = most
        self._refused = refused
        self._resumes = False
        self._recorded: set[str] = set()
        self._done: set[str] = set()

    def unfinished_calls(self) -> tuple[UnfinishedCall, ...]:
        return tuple(
            UnfinishedCall(row_id=self.rows[call.call_id], call=call, made=call.call_id in self._recorded)
            for call in self.calls
            if call.call_id not in self._done
        )

    def to_message(self) -> ToolResultsMessage:
        return ToolResultsMessage(
            results=tuple(build_tool_result(self._model_outcomes[call.call_id]) for call in self.calls)
        )

    def announce_calls(self) -> Iterator[LoopOutput]:
        for call in self.calls:
            yield ToolCallAdded(row_id=self.rows[call.call_id], call=call)
            self._recorded.add(call.call_id)

    def mark_calls_recorded(self) -> None:
        """The rows of the calls were stored by an earlier run of the turn."""
        self._recorded.update(self.rows)
        self._resumes = True

    async def run(self) -> AsyncIterator[LoopOutput]:
        usable: list[ToolCall] = []
        for position, call in enumerate(self.calls):
            if message := self._refusal(position, call):
                for made in self._finish(make_error_outcome(call, message)):
                    yield made
            else:
                usable.append(call)
        judged = await self._approvals.select_calls_to_approve(usable) if usable else ()
        self.calls_to_approve = tuple(one for one in judged if not one.refusal)
        for one in judged:
            if one.refusal:
                for made in self._finish(make_error_outcome(one.call, one.refusal)):
                    yield made
        waiting = {asked.call.call_id for asked in self.calls_to_approve}
        stopped = {one.call.call_id for one in judged}
        async with aclosing_iterator(
            self._run_usable([call for call in usable if call.call_id not in stopped])
        ) as parts:
            async for part in parts:
                for made in self._finish(part) if isinstance(part, ToolCallOutcome) else (part,):
                    yield made
        for call in self.calls:
            if call.call_id not in waiting:
                for made in self._finish(make_error_outcome(call, REPLY_BROKEN_OFF_MESSAGE)):
                    yield made
        for asked in self.calls_to_approve:
            yield ToolStateChanged(call_id=asked.call.call_id, state="waiting")

    def _refusal(self, position: int, call: ToolCall) -> str | None:
        known = [specification.name for specification in self._toolbox.specifications()]
        return self._refused or find_refusal(call, position=position, most=self._most, known=known)

    def _finish(self, outcome: ToolCallOutcome) -> Iterator[LoopOutput]:
        """One result per call: a second one, or one nobody asked for, is dropped (A9.8)."""
        if outcome.call_id in self.outcomes or outcome.call_id not in self.rows:
            return
        if note := self._notes.get(outcome.call_id):
            outcome = replace(outcome, content=note + outcome.content)
        self.outcomes[outcome.call_id] = outcome
        self._model_outcomes[outcome.call_id] = told = self._shorten_repeated_output(outcome)
        yield ToolResultAdded(row_id=uuid4(), outcome=told)
        self._done.add(outcome.call_id)

    def _shorten_repeated_output(self, outcome: ToolCallOutcome) -> ToolCallOutcome:
        """What the model has read already is named instead of said again; people still see it (A9.8)."""
        if len(outcome.content) < MIN_REPEATED_OUTPUT_CHARACTERS or outcome.media:
            return outcome
        results = (result for m in self._before if isinstance(m, ToolResultsMessage) for result in m.results)
        same = (one for one in results if one.content == outcome.content and one.success == outcome.success)
        if (earlier := next(same, None)) is None:
            return outcome
        pointer = REPEATED_OUTPUT_NOTE.format(tool=earlier.tool, call_id=earlier.call_id)
        return replace(outcome, content=pointer, digest=digest_outcome(outcome))

    def _reserved_characters(self) -> int:
        """Characters that the group's other calls have had, if they ran before a pause, or must be left (A9.6)."""
        last = next((one for one in reversed(self._before) if isinstance(one, ToolResultsMessage)), None)
        earlier = last.results if last is not None and self._resumes else ()
        had = sum(len(one.content) for one in earlier if one.call_id not in self.rows)
        return had + MIN_RESULT_CHARACTERS * len(self.calls_to_approve)

    async def _run_usable(self, calls: Sequence[ToolCall]) -> AsyncIterator[Event | ToolCallOutcome]:
        """Outcomes and what the tools say meanwhile, in the order in which they come."""
        if not calls:
            return
        arrived: asyncio.Queue[Event | ToolCallOutcome | None] = asyncio.Queue()
        work = asyncio.create_task(self._pump(calls, arrived))
        try:
            while (part := await arrived.get()) is not None:
                if isinstance(part, QuestionAsked | QuestionClosed):
                    self.is_asking_question = isinstance(part, QuestionAsked)
                yield part
            await work
        finally:
            work.cancel()
            await asyncio.wait({work}, timeout=CANCEL_TIMEOUT_SECONDS)

    async def _pump(
        self, calls: Sequence[ToolCall], arrived: asyncio.Queue[Event | ToolCallOutcome | None]
    ) -> None:
        try:
            running = self._toolbox.run_calls(calls, arrived.put_nowait, taken=self._reserved_characters())
            async with aclosing_iterator(running) as outcomes:
                async for outcome in outcomes:
                    arrived.put_nowait(outcome)
        finally:
            arrived.put_nowait(None)
