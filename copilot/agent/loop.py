"""Drive the rounds of a turn: ask the model, run its tools, and stop at an answer, a limit or a failure."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
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
from copilot.agent.interfaces import LoopPorts, aclosing_iterator
from copilot.agent.model_context import append_message, build_note, replace_results
from copilot.agent.model_requests import ModelRequester, continue_cut_text
from copilot.agent.model_stream import (
    AnswerStep,
    HaltStep,
    InterruptedText,
    LostCallsStep,
    ModelStep,
    RunToolsStep,
    collect_replay,
)
from copilot.agent.outputs import (
    LoopAnswered,
    LoopEnding,
    LoopFailed,
    LoopOutput,
    LoopPaused,
    ModelCallEnded,
    NoteAdded,
    NoticeAdded,
)
from copilot.agent.retry_policy import RetryBudget, RetryPlanner, RetryPolicy
from copilot.agent.token_meters import ContextWindowMeter, count_message_characters
from copilot.agent.tool_runs import ToolRun, UnfinishedCall
from copilot.chat.notices import FailureSource
from copilot.providers.base import (
    AssistantMessage,
    CatalogueEntry,
    ModelMessage,
    ProviderFailure,
    ToolCall,
    ToolSpecification,
    UserMessage,
)
from copilot.realtime.events import ReasoningEnded, StepFinished, TextEnded, TurnPhase
from copilot.realtime.payloads import ContextUsage, Tokens
from copilot.tools.calls import REPLY_BROKEN_OFF_MESSAGE, ROUND_LIMIT_MESSAGE, prepare_for_replay

CallNotes = Mapping[str, str]  # by call id; the model reads them before the call's result


@dataclass(kw_only=True, eq=False)
class LoopState:
    """Hold a run's inputs and progress; the `open_…` properties name what a cancelled run left unfinished."""

    system: str
    messages: list[ModelMessage]
    chain: tuple[CatalogueEntry, ...]
    ports: LoopPorts
    suffix: str = ""
    limits: TurnLimits = field(default_factory=TurnLimits)
    retrying: RetryPolicy = field(default_factory=RetryPolicy)
    thinking_tokens: int = 0
    # How full the context window is after earlier turns; None: estimate it from the messages.
    fullness: ContextWindowMeter | None = None
    first_call_number: int = 1
    first_round: int = 1
    elapsed_seconds: float = 0.0  # active time of earlier runs of this turn
    tokens_before: Tokens = field(default_factory=Tokens)  # of earlier runs
    generation_seconds_before: float = 0.0
    cut_texts: int = 0  # continuations that earlier runs already used
    carried: PriorRuns = field(default_factory=PriorRuns)  # work and limits that earlier runs used
    pending_calls: tuple[ToolCall, ...] = ()  # of an earlier run: approved since then, or safe to repeat
    pending_notes: CallNotes = field(default_factory=dict)
    continuing: InterruptedText | None = None
    checks_first_call: bool = False  # the turn waited in the queue, so the limit may be used up by now
    resumes_text: bool = False  # the context ends with text of an earlier run, complete or not

    def __post_init__(self) -> None:
        self.rounds = self.first_round - 1
        self.began_at = self.ports.clock.now() - self.elapsed_seconds
        self.budget_guard = BudgetGuard(self.ports.budget, resumed=self.first_call_number > 1)
        self.guards = LoopGuards(self.limits, polling=self.ports.toolbox.list_polling_tools())
        self.requester = self._build_requester()
        self._window_meter = self.fullness or ContextWindowMeter(
            self.requester.estimate_request_tokens(self.messages)
        )
        self.requester.window_meter = self._window_meter
        self.compaction = CompactionPolicy(
            self.ports.compactor, self.requester, self._window_meter, self.limits, carried=self.carried
        )
        in_tool_loop = self.carried.ran_tools
        self.requester.retry_planner.restore_requests(
            self.carried.requests, self.messages, in_tool_loop=in_tool_loop
        )
        for group in self.carried.groups:
            self.guards.record_tool_group(group.calls, group.outcomes, self.specifications_by_name())
        self.ran_tools = in_tool_loop
        self.spoke = self.carried.spoke
        self.is_at_tool_boundary = False  # follow-up messages may be taken now
        self.tools: ToolRun | None = None
        self.step: ModelStep | None = None  # the step whose tools run
        self.ending: LoopEnding | None = None

    def _build_requester(self) -> ModelRequester:
        beyond_rounds = max(0, self.first_call_number - self.first_round)
        before = self.carried.requests
        return ModelRequester(
            system=self.system,
            suffix=self.suffix,
            ports=self.ports,
            budget_guard=self.budget_guard,
            retry_planner=RetryPlanner(
                self.chain,
                self.ports,
                RetryBudget(policy=self.retrying, requests_beyond_rounds=beyond_rounds, before=before),
                thinking_tokens=self.thinking_tokens,
                deadline=self.began_at + self.limits.max_seconds,
            ),
            call_number=self.first_call_number,
            interrupted_text=self.continuing,
            resumes_text=self.resumes_text or self.continuing is not None,
            continuations=max(0, self.limits.continuations - self.cut_texts),
            tokens=self.tokens_before,
            generation_seconds=self.generation_seconds_before,
        )

    # --- Read by the runner ---

    @property
    def tokens(self) -> Tokens:
        return self.requester.tokens

    @property
    def first_token_at(self) -> float | None:
        return self.requester.first_token_at

    @property
    def generation_seconds(self) -> float:
        return self.requester.generation_seconds

    @property
    def entry(self) -> CatalogueEntry:
        return self.requester.entry

    def context_use(self, *, through: int) -> ContextUsage:
        """Return the context usage up to the row at position `through`, for the session's next turn."""
        return self._window_meter.to_context_use(window=self.entry.context_window, through=through)

    @property
    def phase(self) -> TurnPhase:
        if self.tools is not None:
            return "question" if self.tools.is_asking_question else "tool"
        if self.compaction.is_running:
            return "compaction"
        return "retry" if self.requester.retry_planner.is_waiting else "model"

    @property
    def seconds(self) -> float:
        """Return active seconds, including those of earlier runs."""
        return self.ports.clock.now() - self.began_at

    @property
    def is_out_of_time(self) -> bool:
        """Check the time limit. The loop checks it between rounds; within a round the runner must."""
        return self.seconds >= self.limits.max_seconds

    @property
    def has_spoken(self) -> bool:
        return self.spoke or self.requester.is_speaking

    def unrecorded_call(self) -> ModelCallEnded | None:
        return self.compaction.unrecorded_call() or self.requester.unrecorded_call()

    @property
    def open_block(self) -> TextEnded | ReasoningEnded | None:
        return self.requester.open_block()

    @property
    def open_calls(self) -> tuple[UnfinishedCall, ...]:
        """Return the calls that need a result, including those whose arguments were still streaming."""
        if self.tools is not None:
            return self.tools.unfinished_calls()
        proposed = self.requester.proposed_calls()
        return tuple(UnfinishedCall(row_id=uuid4(), call=call, made=False) for call in proposed)

    @property
    def open_step(self) -> StepFinished | None:
        step = self.step or self.requester.open_step()
        return step.finish_event("cancelled") if step else None

    # --- Messages ---

    def add_message(self, message: ModelMessage) -> None:
        """Add a message that the model has not read yet."""
        append_message(self.messages, message)
        self._window_meter.add_characters(count_message_characters(message))

    def add_reply(self, text: str, *, calls: tuple[ToolCall, ...] = (), replay: tuple[str, ...] = ()) -> None:
        self.spoke = self.spoke or bool(text)
        append_message(self.messages, AssistantMessage(text=text, calls=calls, replay=replay))

    def add_note(self, text: str) -> NoteAdded:
        self.add_message(build_note(text))
        return NoteAdded(row_id=uuid4(), text=text)

    def specifications_by_name(self) -> dict[str, ToolSpecification]:
        return {tool.name: tool for tool in self.ports.toolbox.specifications()}


# --- Acting on a reply ---

CONTEXT_FULL_CODE = "context_full"  # replaces context_overflow when nothing could be shortened
CLOSING_LINE = "Done. The steps are shown above."  # a turn that ran tools never ends without text


def handle_reply(state: LoopState) -> AsyncIterator[LoopOutput]:
    match state.requester.outcome:
        case AnswerStep() as answer:
            return _finish_with_answer(state, answer)
        case RunToolsStep(calls=calls):
            return _run_tools(state, calls)
        case LostCallsStep(lost=lost):
            return _note_lost_calls(state, lost)
        case HaltStep(calls=calls):
            return _refuse_tools(state, calls)
        case ProviderFailure() as failure:
            return _fail_round(state, failure)
        case unreachable:
            assert_never(unreachable)


async def _finish_with_answer(state: LoopState, answer: AnswerStep) -> AsyncIterator[LoopOutput]:
    attempt, reply = state.requester.successful_attempt()
    if answer.silent:
        for event in attempt.add_synthetic_text(CLOSING_LINE):
            yield event
    state.add_reply(CLOSING_LINE if answer.silent else reply.text)
    for event in attempt.step.finish(reply.finish):
        yield event
    if answer.truncated:
        yield NoticeAdded(row_id=uuid4(), code="output_truncated")
    state.ending = LoopAnswered()


async def _note_lost_calls(state: LoopState, lost: tuple[str, ...]) -> AsyncIterator[LoopOutput]:
    attempt, reply = state.requester.successful_attempt()
    state.add_reply(reply.text)
    for event in attempt.step.finish(reply.finish):
        yield event
    yield state.add_note(LOST_CALLS_NOTE.format(tools=", ".join(lost)))


async def _run_tools(
    state: LoopState, calls: Sequence[ToolCall], *, refused: str = ""
) -> AsyncIterator[LoopOutput]:
    attempt, reply = state.requester.successful_attempt()
    state.add_reply(reply.text, calls=tuple(prepare_for_replay(call) for call in calls), replay=reply.replay)
    run = _start_tool_run(state, calls, attempt.step, refused=refused)
    for output in chain(run.announce_calls(), collect_replay(attempt, reply, run.rows)):
        yield output
    async with aclosing_iterator(_run_until_pause(state, run)) as stream:
        async for output in stream:
            yield output
    if run.calls_to_approve:
        return
    state.add_message(run.to_message())
    for output in _finish_tool_run(state, run, reply.finish):
        yield output


async def _run_until_pause(state: LoopState, run: ToolRun) -> AsyncIterator[LoopOutput]:
    async with aclosing_iterator(run.run()) as stream:
        async for output in stream:
            yield output
    if run.calls_to_approve:
        for output in _pause_for_approval(state, run):
            yield output


async def _refuse_tools(state: LoopState, calls: Sequence[ToolCall]) -> AsyncIterator[LoopOutput]:
    for stream in (
        _run_tools(state, calls, refused=ROUND_LIMIT_MESSAGE),
        end_loop_at_limit(state, ReachedLimit(code="round_limit")),
    ):
        async with aclosing_iterator(stream):
            async for output in stream:
                yield output


async def _fail_round(state: LoopState, failure: ProviderFailure) -> AsyncIterator[LoopOutput]:
    """End the turn as failed. The output so far stays, and every call gets a result."""
    step = state.requester.last_step()
    run = _start_tool_run(state, state.requester.proposed_calls(), step, refused=REPLY_BROKEN_OFF_MESSAGE)
    for output in chain(state.requester.end_interrupted_text(), run.announce_calls()):
        yield output
    async with aclosing_iterator(run.run()) as stream:
        async for output in stream:
            yield output
    for output in _finish_tool_run(state, run, failure.code):
        yield output
    limit = state.requester.limit
    code = CONTEXT_FULL_CODE if state.requester.has_overflowed else failure.code
    source = FailureSource(provider=failure.provider, model=failure.model, request_id=failure.request_id)
    state.ending = LoopFailed(code=limit.code if limit else code, details=failure.details, source=source)


async def end_loop_at_limit(state: LoopState, limit: ReachedLimit) -> AsyncIterator[LoopOutput]:
    """End the turn at a limit: as answered if the model said something, otherwise as failed."""
    for event in state.requester.end_interrupted_text():
        yield event
    if state.spoke:
        yield NoticeAdded(row_id=uuid4(), code=limit.code, details=limit.details)
    spoke, code = state.spoke, limit.code
    state.ending = LoopAnswered(limit_code=code) if spoke else LoopFailed(code=code, details=limit.details)


async def run_pending_calls(state: LoopState) -> AsyncIterator[LoopOutput]:
    """Run calls that an earlier run left open and that may run now. Their rows exist already."""
    if not state.pending_calls:
        return
    step = ModelStep(round=max(state.rounds, 1))
    yield step.start_event()
    run = _start_tool_run(state, state.pending_calls, step, notes=state.pending_notes)
    run.mark_calls_recorded()
    async with aclosing_iterator(_run_until_pause(state, run)) as stream:
        async for output in stream:
            yield output
    if run.calls_to_approve:
        return
    replace_results(state.messages, run.to_message())
    state.pending_calls = ()
    for output in _finish_tool_run(state, run, "resumed"):
        yield output


def _start_tool_run(
    state: LoopState,
    calls: Sequence[ToolCall],
    step: ModelStep,
    *,
    refused: str = "",
    notes: CallNotes | None = None,
) -> ToolRun:
    state.step = step
    max_calls = state.limits.calls_per_reply
    state.tools = ToolRun(
        calls, state.ports, max_calls=max_calls, refused=refused, notes=notes, before=state.messages
    )
    return state.tools


def _pause_for_approval(state: LoopState, run: ToolRun) -> Iterator[LoopOutput]:
    if state.step is not None:
        yield from state.step.finish("paused")
    state.step = None
    state.ending = LoopPaused(calls=run.calls_to_approve)


def _finish_tool_run(state: LoopState, run: ToolRun, reason: str) -> Iterator[LoopOutput]:
    notes = state.guards.record_tool_group(run.calls, run.outcomes, state.specifications_by_name())
    if state.step is not None:
        yield from state.step.finish(reason)
    state.tools = state.step = None
    state.ran_tools = state.is_at_tool_boundary = True
    for text in notes:
        yield state.add_note(text)


# --- The loop ---


class AgentLoop(LoopState):
    """Run the rounds of one turn. Cancelling the task that iterates `run` stops it."""

    @property
    def can_start_round(self) -> bool:
        """Check the limits except money. If no round may begin, queued messages need a turn of their own."""
        return self._find_limit() is None

    async def can_pay(self) -> bool:
        return await self.budget_guard.check_within_round() is None

    def add_follow_ups(self, messages: Sequence[UserMessage]) -> None:
        """Add messages that arrived after the answer, so that `run` can be called again in the same turn."""
        for message in messages:
            self.add_message(message)
        self.ran_tools = False
        self.ending = None

    async def run(self) -> AsyncGenerator[LoopOutput, None]:
        """Yield everything that happens, then exactly one ending."""
        async with aclosing_iterator(run_pending_calls(self)) as stream:
            async for output in stream:
                yield output
        while self.ending is None:
            limit = self._find_limit() or await self._find_budget_limit()
            async with aclosing_iterator(
                self._run_round() if limit is None else end_loop_at_limit(self, limit)
            ) as stream:
                async for output in stream:
                    yield output
        yield self.ending

    def _find_limit(self) -> ReachedLimit | None:
        code = self.guards.find_limit(next_round=self.rounds + 1, seconds=self.seconds)
        return None if code is None else ReachedLimit(code=code)

    async def _find_budget_limit(self) -> ReachedLimit | None:
        if self.requester.call_number == 1 and not self.checks_first_call:
            return None
        return await self.budget_guard.check_before_round()

    async def _run_round(self) -> AsyncIterator[LoopOutput]:
        self.rounds += 1
        self.requester.retry_budget.begin_round()
        for stage in (self._prepare_round, self._request_reply, partial(handle_reply, self)):
            async with aclosing_iterator(stage()) as stream:
                async for output in stream:
                    yield output
            if self.ending is not None:
                return

    async def _prepare_round(self) -> AsyncIterator[LoopOutput]:
        if self.compaction.is_due():
            async with aclosing_iterator(self._compact(forced=False)) as stream:
                async for output in stream:
                    yield output
            async with aclosing_iterator(self._end_if_out_of_budget()) as stream:
                async for output in stream:
                    yield output
            if self.ending is not None:
                return
        await self._take_follow_ups()
        if self.guards.is_last_round(self.rounds):
            yield self.add_note(LAST_ROUND_NOTE)

    async def _request_reply(self) -> AsyncIterator[LoopOutput]:
        """Request one reply; shorten the context and ask again when the model refuses it as too long."""
        state = RoundState(last_round=self.guards.is_last_round(self.rounds), ran_tools=self.ran_tools)
        while True:
            async with aclosing_iterator(
                self.requester.request_reply(self.messages, round_number=self.rounds, state=state)
            ) as stream:
                async for output in stream:
                    yield output
            if not self.requester.has_overflowed:
                async with aclosing_iterator(
                    continue_cut_text(self.requester, self.messages, state=state)
                ) as stream:
                    async for output in stream:
                        yield output
                return
            shorten = self.compaction.can_force() and not await self.requester.is_out_of_budget()
            if shorten:
                async with aclosing_iterator(self._compact(forced=True)) as stream:
                    async for output in stream:
                        yield output
            if shorten and self.compaction.succeeded:
                async with aclosing_iterator(self._end_if_out_of_budget()) as stream:
                    async for output in stream:
                        yield output
                if self.ending is not None:
                    return
                continue
            fallback_outputs = await self.requester.fall_back_to_larger_window(
                self.messages, in_tool_loop=self.ran_tools
            )
            for output in fallback_outputs:
                yield output
            if not fallback_outputs:
                return

    async def _compact(self, *, forced: bool) -> AsyncIterator[LoopOutput]:
        """Compact the context. Rounds begin after a whole tool group, so no call loses its result."""
        async with aclosing_iterator(self.compaction.compact(self.messages, forced=forced)) as stream:
            async for output in stream:
                yield output
        if not self.compaction.succeeded:
            if not forced:
                yield self.compaction.give_up()
            return
        if forced:
            for output in self.requester.abandon_step():
                yield output
        if self.ran_tools:
            yield self.add_note(COMPACTED_NOTE)

    async def _end_if_out_of_budget(self) -> AsyncIterator[LoopOutput]:
        if (limit := await self.budget_guard.check_within_round()) is not None:
            async with aclosing_iterator(end_loop_at_limit(self, limit)) as stream:
                async for output in stream:
                    yield output

    async def _take_follow_ups(self) -> None:
        if self.is_at_tool_boundary:
            self.is_at_tool_boundary = False
            for message in await self.ports.follow_ups.take_follow_ups():
                self.add_message(message)
