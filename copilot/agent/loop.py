"""Drive the rounds of a turn: ask the model, run its tools, and stop at an answer, a limit or a failure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never
from uuid import uuid4

from copilot.agent.compaction_policy import CompactionPolicy
from copilot.agent.guards import (
    COMPACTED_NOTE,
    LAST_ROUND_NOTE,
    LOST_CALLS_NOTE,
    BudgetGuard,
    LoopGuards,
    PriorRuns,
    ReachedLimit,
    RoundState,
    TurnLimits,
)
from copilot.agent.interfaces import LoopPorts
from copilot.agent.model_client import ModelClient
from copilot.agent.model_context import append_message, build_note, replace_results
from copilot.agent.model_stream import (
    AnswerStep,
    HaltStep,
    InterruptedText,
    LostCallsStep,
    ModelAttempt,
    ModelReply,
    ModelStep,
    RunToolsStep,
)
from copilot.agent.outputs import (
    LoopAnswered,
    LoopEnding,
    LoopFailed,
    LoopPaused,
    ModelCallEnded,
    NoteAdded,
    NoticeAdded,
)
from copilot.agent.retry_policy import RetryPolicy
from copilot.agent.structured_output import INVALID_OUTPUT_NOTE, MAX_OUTPUT_RETRIES, find_output_problems
from copilot.agent.token_meters import ContextWindowMeter, count_message_characters
from copilot.agent.tool_runs import ToolRun, UnfinishedCall
from copilot.chat.notices import FailureSource
from copilot.providers.base import (
    NO_PARAMETERS,
    AssistantMessage,
    CatalogueEntry,
    ModelMessage,
    ProviderFailure,
    RequestParameters,
    ToolCall,
    ToolSpecification,
    UserMessage,
)
from copilot.realtime.events import ReasoningEnded, StepFinished, TextEnded, TurnPhase
from copilot.realtime.payloads import ContextUsage
from copilot.tools.calls import REPLY_BROKEN_OFF_MESSAGE, ROUND_LIMIT_MESSAGE, prepare_for_replay

CONTEXT_FULL_CODE = "context_full"  # replaces context_overflow when nothing could be shortened
MAX_RETRY_AFTER_SECONDS = 24 * 3600
CLOSING_LINE = "Done. The steps are shown above."  # a turn that ran tools never ends without text


@dataclass(frozen=True, kw_only=True)
class UnfinishedWork:
    """Work that an earlier run of the turn left open, which this run finishes first."""

    calls: tuple[ToolCall, ...] = ()  # approved since then, or safe to repeat
    notes: Mapping[str, str] = field(default_factory=dict)  # by call id; read before the call's result
    text: InterruptedText | None = None
    ends_with_text: bool = False  # the context ends with text of an earlier run, complete or not


def _apply_parameters(limits: TurnLimits, parameters: RequestParameters) -> TurnLimits:
    if parameters.max_tokens is not None:
        limits = replace(limits, continuations=0)
    if parameters.parallel_tool_calls is False:
        limits = replace(limits, calls_per_reply=1)
    return limits


class AgentLoop:
    """Run the rounds of one turn and emit all output to `ports.output`. Cancel the task to stop it.

    After a cancellation, the `open_…` properties name what was left unfinished.
    """

    def __init__(
        self,
        *,
        system: str,
        suffix: str = "",
        messages: list[ModelMessage],
        chain: tuple[CatalogueEntry, ...],
        ports: LoopPorts,
        limits: TurnLimits | None = None,
        retry_policy: RetryPolicy | None = None,
        thinking_tokens: int = 0,
        window_meter: ContextWindowMeter | None = None,
        prior_runs: PriorRuns | None = None,
        unfinished: UnfinishedWork | None = None,
        checks_first_call: bool = False,
        parameters: RequestParameters = NO_PARAMETERS,
    ) -> None:
        """Set up the loop.

        `window_meter` tells how full the context window is after earlier turns; without one it is estimated.
        `checks_first_call` says that the turn waited in the queue, so that a limit may be used up by now.
        """
        prior_runs, unfinished = prior_runs or PriorRuns(), unfinished or UnfinishedWork()
        self.messages, self.chain, self.rounds = messages, chain, prior_runs.rounds
        self.limits = _apply_parameters(limits or TurnLimits(), parameters)
        self._parameters = parameters
        self._output_retries = 0
        self.checks_first_call = checks_first_call
        self.ending: LoopEnding | None = None
        self._ports, self._output = ports, ports.output
        self._unfinished = unfinished
        self._began_at = ports.clock.now() - prior_runs.seconds
        self._budget_guard = BudgetGuard(ports.budget, resumed=prior_runs.calls > 0)
        self._guards = LoopGuards(self.limits, polling=ports.toolbox.list_polling_tools())
        for group in prior_runs.groups:
            self._guards.record_tool_group(group.calls, group.outcomes, self._specifications_by_name())
        self.client = ModelClient(
            system=system,
            suffix=suffix,
            messages=messages,
            chain=chain,
            ports=ports,
            budget_guard=self._budget_guard,
            prior_runs=prior_runs,
            retry_policy=retry_policy or RetryPolicy(),
            thinking_tokens=thinking_tokens,
            deadline=self._began_at + self.limits.max_seconds,
            interrupted_text=unfinished.text,
            resumes_text=unfinished.ends_with_text or unfinished.text is not None,
            continuations=max(0, self.limits.continuations - prior_runs.cut_texts),
            window_meter=window_meter,
            parameters=parameters,
        )
        self.compaction = CompactionPolicy(ports, self.client, self.limits, prior_runs=prior_runs)
        self._ran_tools = prior_runs.ran_tools
        self._spoke = prior_runs.spoke
        self._is_at_tool_boundary = False  # follow-up messages may be taken now
        self._tool_run: ToolRun | None = None
        self._tool_step: ModelStep | None = None  # the step whose tools run

    # --- Running ---

    async def run(self) -> LoopEnding:
        """Run rounds until the turn is answered, fails, or waits for a person."""
        await self._run_unfinished_calls()
        while self.ending is None:
            limit = self._find_limit() or await self._find_budget_limit()
            if limit is None:
                await self._run_round()
            else:
                await self._end_at_limit(limit)
        return self.ending

    async def _run_round(self) -> None:
        self.rounds += 1
        self.client.retry_budget.begin_round()
        await self._prepare_round()
        if self.ending is None:
            await self._request_reply()
        if self.ending is None:
            await self._handle_reply()

    async def _prepare_round(self) -> None:
        if self.compaction.is_due():
            await self._compact(forced=False)
            await self._end_if_out_of_budget()
            if self.ending is not None:
                return
        await self._take_follow_ups()
        if self._guards.is_last_round(self.rounds):
            await self._add_note(LAST_ROUND_NOTE)

    async def _request_reply(self) -> None:
        """Request one reply; shorten the context and ask again when the model refuses it as too long."""
        client = self.client
        state = RoundState(last_round=self._guards.is_last_round(self.rounds), ran_tools=self._ran_tools)
        while True:
            await client.request_reply(self.messages, round_number=self.rounds, state=state)
            if not client.has_overflowed:
                await client.continue_cut_text(self.messages, state=state)
                return
            if self.compaction.can_force() and not await client.is_out_of_budget():
                await self._compact(forced=True)
                if self.compaction.succeeded:
                    await self._end_if_out_of_budget()
                    if self.ending is not None:
                        return
                    continue
            if not await client.fall_back_to_larger_window(self.messages, in_tool_loop=self._ran_tools):
                return

    async def _compact(self, *, forced: bool) -> None:
        """Compact the context. Rounds begin after a whole tool group, so no call loses its result."""
        await self.compaction.compact(self.messages, forced=forced)
        if not self.compaction.succeeded:
            if not forced:
                await self.compaction.give_up()
            return
        if forced:
            await self.client.abandon_step()
        if self._ran_tools:
            await self._add_note(COMPACTED_NOTE)

    async def _take_follow_ups(self) -> None:
        if self._is_at_tool_boundary:
            self._is_at_tool_boundary = False
            for message in await self._ports.follow_ups.take_follow_ups():
                self._add_message(message)

    # --- Acting on a reply ---

    async def _handle_reply(self) -> None:
        match self.client.outcome:
            case AnswerStep() as answer:
                await self._finish_with_answer(answer)
            case RunToolsStep(calls=calls):
                await self._run_tools(calls)
            case LostCallsStep(lost=lost):
                await self._note_lost_calls(lost)
            case HaltStep(calls=calls):
                await self._run_tools(calls, refused=ROUND_LIMIT_MESSAGE)
                await self._end_at_limit(ReachedLimit(code="round_limit"))
            case ProviderFailure() as failure:
                await self._fail_round(failure)
            case unreachable:
                assert_never(unreachable)

    async def _finish_with_answer(self, answer: AnswerStep) -> None:
        attempt, reply = self.client.successful_attempt()
        if await self._request_valid_output(answer, attempt, reply):
            return
        if answer.silent:
            await attempt.add_synthetic_text(CLOSING_LINE)
        self._add_reply(CLOSING_LINE if answer.silent else reply.text)
        await attempt.step.finish(self._output, reply.finish)
        if answer.truncated:
            await self._output.emit(NoticeAdded(row_id=uuid4(), code="output_truncated"))
            if self._parameters.max_tokens is not None:
                self.ending = LoopAnswered(limit_code="output_truncated")
                return
        is_invalid = not answer.truncated and self._find_output_problems(reply.text)
        self.ending = LoopAnswered(limit_code="invalid_output" if is_invalid else None)

    async def _request_valid_output(
        self, answer: AnswerStep, attempt: ModelAttempt, reply: ModelReply
    ) -> bool:
        """Ask again for an answer that is not the JSON the caller wants; return False when it stands."""
        problems = self._find_output_problems(reply.text)
        if not problems or answer.truncated or self._output_retries >= MAX_OUTPUT_RETRIES:
            return False
        self._output_retries += 1
        self._add_reply(reply.text)
        await attempt.step.finish(self._output, reply.finish)
        await self._add_note(INVALID_OUTPUT_NOTE.format(problems="\n".join(problems)))
        return True

    def _find_output_problems(self, text: str) -> list[str]:
        wanted = self._parameters.output_format
        return find_output_problems(text, wanted) if wanted is not None else []

    async def _note_lost_calls(self, lost: tuple[str, ...]) -> None:
        attempt, reply = self.client.successful_attempt()
        self._add_reply(reply.text)
        await attempt.step.finish(self._output, reply.finish)
        await self._add_note(LOST_CALLS_NOTE.format(tools=", ".join(lost)))

    async def _run_tools(self, calls: Sequence[ToolCall], *, refused: str = "") -> None:
        attempt, reply = self.client.successful_attempt()
        replayable = tuple(prepare_for_replay(call) for call in calls)
        self._add_reply(reply.text, calls=replayable, replay=reply.replay)
        run = self._start_tool_run(calls, attempt.step, refused=refused)
        await run.announce_calls()
        await attempt.emit_replay(reply, run.rows)
        await run.run()
        if run.is_waiting:
            await self._pause(run)
            return
        self._add_message(run.to_message())
        await self._finish_tool_run(run, reply.finish)

    async def _fail_round(self, failure: ProviderFailure) -> None:
        """End the turn as failed. The output so far stays, and every call gets a result."""
        client = self.client
        run = self._start_tool_run(
            client.proposed_calls(), client.last_step(), refused=REPLY_BROKEN_OFF_MESSAGE
        )
        await client.end_interrupted_text()
        await run.announce_calls()
        await run.run()
        await self._finish_tool_run(run, failure.code)
        code: str = failure.code
        if client.limit is not None:
            code = client.limit.code
        elif client.has_overflowed:
            code = CONTEXT_FULL_CODE
        source = FailureSource(
            provider=failure.provider,
            model=failure.model,
            request_id=failure.request_id,
            retry_after_seconds=math.ceil(min(failure.retry_after_seconds or 0, MAX_RETRY_AFTER_SECONDS)),
        )
        self.ending = LoopFailed(code=code, details=failure.details, source=source)

    # --- Tools ---

    async def _run_unfinished_calls(self) -> None:
        """Run calls that an earlier run left open and that may run now. Their rows exist already."""
        if not self._unfinished.calls:
            return
        step = ModelStep(round=max(self.rounds, 1))
        await self._output.emit(step.start_event())
        run = self._start_tool_run(self._unfinished.calls, step, notes=self._unfinished.notes)
        run.mark_calls_recorded()
        await run.run()
        if run.is_waiting:
            await self._pause(run)
            return
        replace_results(self.messages, run.to_message())
        self._unfinished = UnfinishedWork()
        await self._finish_tool_run(run, "resumed")

    def _start_tool_run(
        self,
        calls: Sequence[ToolCall],
        step: ModelStep,
        *,
        refused: str = "",
        notes: Mapping[str, str] | None = None,
    ) -> ToolRun:
        self._tool_step = step
        self._tool_run = ToolRun(
            calls,
            self._ports,
            max_calls=self.limits.calls_per_reply,
            refused=refused,
            notes=notes,
            before=self.messages,
        )
        return self._tool_run

    async def _pause(self, run: ToolRun) -> None:
        if self._tool_step is not None:
            await self._tool_step.finish(self._output, "paused")
        self._tool_step = None
        self.ending = LoopPaused(calls=run.calls_to_approve, client_calls=run.client_calls)

    async def _finish_tool_run(self, run: ToolRun, reason: str) -> None:
        notes = self._guards.record_tool_group(run.calls, run.outcomes, self._specifications_by_name())
        if self._tool_step is not None:
            await self._tool_step.finish(self._output, reason)
        self._tool_run = self._tool_step = None
        self._ran_tools = self._is_at_tool_boundary = True
        for text in notes:
            await self._add_note(text)

    def _specifications_by_name(self) -> dict[str, ToolSpecification]:
        return {tool.name: tool for tool in self._ports.toolbox.specifications()}

    # --- Limits ---

    @property
    def can_start_round(self) -> bool:
        """Check the limits except money. If no round may begin, queued messages need a turn of their own."""
        return self._find_limit() is None

    async def can_pay(self) -> bool:
        return await self._budget_guard.check_within_round() is None

    @property
    def is_out_of_time(self) -> bool:
        """Check the time limit. The loop checks it between rounds; within a round the runner must."""
        return self._seconds >= self.limits.max_seconds

    @property
    def _seconds(self) -> float:
        """Return active seconds, including those of earlier runs."""
        return self._ports.clock.now() - self._began_at

    def _find_limit(self) -> ReachedLimit | None:
        most = self._parameters.max_tokens
        if most is not None and self.client.output_tokens >= most:
            return ReachedLimit(code="output_truncated")
        code = self._guards.find_limit(next_round=self.rounds + 1, seconds=self._seconds)
        return None if code is None else ReachedLimit(code=code)

    async def _find_budget_limit(self) -> ReachedLimit | None:
        if self.client.call_number == 1 and not self.checks_first_call:
            return None
        return await self._budget_guard.check_before_round()

    async def _end_if_out_of_budget(self) -> None:
        if (limit := await self._budget_guard.check_within_round()) is not None:
            await self._end_at_limit(limit)

    async def _end_at_limit(self, limit: ReachedLimit) -> None:
        """End the turn at a limit: as answered if the model said something, otherwise as failed."""
        await self.client.end_interrupted_text()
        if not self._spoke:
            self.ending = LoopFailed(code=limit.code, details=limit.details)
            return
        await self._output.emit(NoticeAdded(row_id=uuid4(), code=limit.code, details=limit.details))
        self.ending = LoopAnswered(limit_code=limit.code)

    # --- The context ---

    def add_follow_ups(self, messages: Sequence[UserMessage]) -> None:
        """Add messages that arrived after the answer, so that `run` can be called again in the same turn."""
        for message in messages:
            self._add_message(message)
        self._ran_tools = False
        self.ending = None

    def _add_message(self, message: ModelMessage) -> None:
        """Add a message that the model has not read yet."""
        append_message(self.messages, message)
        self.client.window_meter.add_characters(count_message_characters(message))

    def _add_reply(
        self, text: str, *, calls: tuple[ToolCall, ...] = (), replay: tuple[str, ...] = ()
    ) -> None:
        self._spoke = self._spoke or bool(text)
        append_message(self.messages, AssistantMessage(text=text, calls=calls, replay=replay))

    async def _add_note(self, text: str) -> None:
        self._add_message(build_note(text))
        await self._output.emit(NoteAdded(row_id=uuid4(), text=text))

    # --- Read by the runner ---

    @property
    def phase(self) -> TurnPhase:
        if self._tool_run is not None:
            return "question" if self._tool_run.is_asking_question else "tool"
        if self.compaction.is_running:
            return "compaction"
        return "retry" if self.client.is_waiting else "model"

    @property
    def has_spoken(self) -> bool:
        return self._spoke or self.client.is_speaking

    def context_use(self, *, through: int) -> ContextUsage:
        """Return the context usage up to the row at position `through`, for the session's next turn."""
        window = self.client.entry.context_window
        return self.client.window_meter.to_context_use(window=window, through=through)

    # --- Left open by a cancellation ---

    def unrecorded_call(self) -> ModelCallEnded | None:
        return self.compaction.unrecorded_call() or self.client.unrecorded_call()

    @property
    def open_block(self) -> TextEnded | ReasoningEnded | None:
        return self.client.open_block()

    @property
    def open_calls(self) -> tuple[UnfinishedCall, ...]:
        """Return the calls that need a result, including those whose arguments were still streaming."""
        if self._tool_run is not None:
            return self._tool_run.unfinished_calls()
        proposed = self.client.proposed_calls()
        if proposed:
            return tuple(UnfinishedCall(row_id=uuid4(), call=call, made=False) for call in proposed)
        # Calls of an earlier run that have not begun again; their rows exist already.
        return tuple(UnfinishedCall(row_id=uuid4(), call=call, made=True) for call in self._unfinished.calls)

    @property
    def open_step(self) -> StepFinished | None:
        step = self._tool_step or self.client.open_step()
        return step.finish_event("cancelled") if step else None
