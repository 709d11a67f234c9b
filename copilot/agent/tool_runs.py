"""Run the tool calls of one reply: rows first, results as they finish, and exactly one result per call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from copilot.agent.guards import digest_outcome
from copilot.agent.interfaces import LoopPorts, aclosing_iterator
from copilot.agent.model_context import build_tool_result
from copilot.agent.outputs import ApprovalNeeded, ToolCallAdded, ToolResultAdded
from copilot.providers.base import ModelMessage, ToolCall, ToolResultsMessage
from copilot.realtime.events import Event, QuestionAsked, QuestionClosed, ToolStateChanged
from copilot.tools.base import MIN_RESULT_CHARACTERS, ToolCallOutcome
from copilot.tools.calls import REPLY_BROKEN_OFF_MESSAGE, find_refusal, make_error_outcome

# A shorter output costs little more than the note that would replace it.
MIN_REPEATED_OUTPUT_CHARACTERS = 2_000
REPEATED_OUTPUT_NOTE = (
    'The same output, to the character, as that of an earlier call of yours ({tool}, call_id "{call_id}"), which you '
    "have in this conversation: nothing has changed since."
)
CANCEL_TIMEOUT_SECONDS = 1.0  # how long a cancelled tool may take to stop


@dataclass(frozen=True, kw_only=True)
class UnfinishedCall:
    """A call without a result. Unless it was `made`, its row is not stored yet."""

    row_id: UUID
    call: ToolCall
    made: bool


class ToolRun:
    """Run the calls of one reply. Those in `calls_to_approve` wait for a person while the others run, those in
    `client_calls` for the caller of the API.

    `refused` answers all calls instead of running them; `notes` go in front of results, by call id; `before`
    is the context the model still has.
    """

    def __init__(
        self,
        calls: Sequence[ToolCall],
        ports: LoopPorts,
        *,
        max_calls: int,
        refused: str = "",
        notes: Mapping[str, str] | None = None,
        before: Sequence[ModelMessage] = (),
    ) -> None:
        self.calls = tuple(calls)
        self.calls_to_approve: tuple[ApprovalNeeded, ...] = ()
        self.client_calls: tuple[ToolCall, ...] = ()
        self.is_asking_question = False  # a tool waits for a person's answer
        self.outcomes: dict[str, ToolCallOutcome] = {}  # in full
        self._model_outcomes: dict[str, ToolCallOutcome] = {}  # as the model reads them
        self._before = before
        self.rows = {call.call_id: uuid4() for call in calls}
        self._output = ports.output
        self._toolbox = ports.toolbox
        self._approvals = ports.approvals
        self._notes = notes or {}
        self._max_calls = max_calls
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

    async def announce_calls(self) -> None:
        for call in self.calls:
            of_client = call.tool in self._toolbox.list_client_tools()
            await self._output.emit(
                ToolCallAdded(row_id=self.rows[call.call_id], call=call, of_client=of_client)
            )
            self._recorded.add(call.call_id)

    def mark_calls_recorded(self) -> None:
        self._recorded.update(self.rows)
        self._resumes = True

    async def run(self) -> None:
        usable: list[ToolCall] = []
        for position, call in enumerate(self.calls):
            if message := self._refusal(position, call):
                await self._finish(make_error_outcome(call, message))
            else:
                usable.append(call)
        client_tools = self._toolbox.list_client_tools()
        self.client_calls = tuple(call for call in usable if call.tool in client_tools)
        usable = [call for call in usable if call.tool not in client_tools]
        held = await self._approvals.select_calls_to_approve(usable) if usable else ()
        self.calls_to_approve = tuple(need for need in held if not need.refusal)
        for need in held:
            if need.refusal:
                await self._finish(make_error_outcome(need.call, need.refusal))
        waiting_calls = (*(need.call for need in self.calls_to_approve), *self.client_calls)
        waiting = {call.call_id for call in waiting_calls}
        held_ids = {need.call.call_id for need in held}
        await self._run_usable([call for call in usable if call.call_id not in held_ids])
        for call in self.calls:
            if call.call_id not in waiting:
                await self._finish(make_error_outcome(call, REPLY_BROKEN_OFF_MESSAGE))
        for call in waiting_calls:
            await self._output.emit(ToolStateChanged(call_id=call.call_id, state="waiting"))

    @property
    def is_waiting(self) -> bool:
        """Tell whether calls are left that run elsewhere or need a decision."""
        return bool(self.calls_to_approve or self.client_calls)

    def _refusal(self, position: int, call: ToolCall) -> str | None:
        known = [specification.name for specification in self._toolbox.specifications()]
        return self._refused or find_refusal(call, position=position, most=self._max_calls, known=known)

    async def _finish(self, outcome: ToolCallOutcome) -> None:
        """Record one result per call; drop a second one, or one of an unknown call."""
        if outcome.call_id in self.outcomes or outcome.call_id not in self.rows:
            return
        if note := self._notes.get(outcome.call_id):
            outcome = replace(outcome, content=note + outcome.content)
        self.outcomes[outcome.call_id] = outcome
        self._model_outcomes[outcome.call_id] = model_outcome = self._shorten_repeated_output(outcome)
        await self._output.emit(ToolResultAdded(row_id=uuid4(), outcome=model_outcome))
        self._done.add(outcome.call_id)

    def _shorten_repeated_output(self, outcome: ToolCallOutcome) -> ToolCallOutcome:
        """Refer to output that the model has already read instead of repeating it; people still see it."""
        if len(outcome.content) < MIN_REPEATED_OUTPUT_CHARACTERS or outcome.media:
            return outcome
        results = (r for m in self._before if isinstance(m, ToolResultsMessage) for r in m.results)
        same = (
            result
            for result in results
            if result.content == outcome.content and result.success == outcome.success
        )
        if (earlier := next(same, None)) is None:
            return outcome
        pointer = REPEATED_OUTPUT_NOTE.format(tool=earlier.tool, call_id=earlier.call_id)
        return replace(outcome, content=pointer, digest=digest_outcome(outcome))

    def _reserved_characters(self) -> int:
        """Count characters used by the group's earlier calls, or reserved for those that wait."""
        groups = (m for m in reversed(self._before) if isinstance(m, ToolResultsMessage))
        last = next(groups, None)
        earlier = last.results if last is not None and self._resumes else ()
        used = sum(len(result.content) for result in earlier if result.call_id not in self.rows)
        return used + MIN_RESULT_CHARACTERS * (len(self.calls_to_approve) + len(self.client_calls))

    async def _run_usable(self, calls: Sequence[ToolCall]) -> None:
        """Run calls at once. Tools emit events without waiting, so events and results pass through one queue."""
        if not calls:
            return
        arrived: asyncio.Queue[Event | ToolCallOutcome | None] = asyncio.Queue()
        work = asyncio.create_task(self._collect_outcomes(calls, arrived))
        try:
            while (part := await arrived.get()) is not None:
                if isinstance(part, ToolCallOutcome):
                    await self._finish(part)
                    continue
                if isinstance(part, QuestionAsked | QuestionClosed):
                    self.is_asking_question = isinstance(part, QuestionAsked)
                await self._output.emit(part)
            await work
        finally:
            work.cancel()
            await asyncio.wait({work}, timeout=CANCEL_TIMEOUT_SECONDS)

    async def _collect_outcomes(
        self, calls: Sequence[ToolCall], arrived: asyncio.Queue[Event | ToolCallOutcome | None]
    ) -> None:
        try:
            running = self._toolbox.run_calls(calls, arrived.put_nowait, taken=self._reserved_characters())
            async with aclosing_iterator(running) as outcomes:
                async for outcome in outcomes:
                    arrived.put_nowait(outcome)
        finally:
            arrived.put_nowait(None)
