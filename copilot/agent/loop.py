"""One run of a turn as it goes: what it began with, how far it has come, what stands open (A2.1, A3.5)."""

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

CallNotes = Mapping[str, str]  # for the model, before a call's result


@dataclass(kw_only=True, eq=False)
class LoopState:
    """Plain values and ports in; `open_…` say what stands open when the run is cancelled."""

    system: str
    messages: list[ModelMessage]
    chain: tuple[CatalogueEntry, ...]
    ports: LoopPorts
    suffix: str = ""
    limits: TurnLimits = field(default_factory=TurnLimits)
    retrying: RetryPolicy = field(default_factory=RetryPolicy)
    thinking_tokens: int = 0
    fullness: ContextWindowMeter | None = (
        None  # of the window, as earlier turns left it; None: estimated here
    )
    first_call_number: int = 1
    first_round: int = 1
    elapsed_seconds: float = 0.0  # active time of earlier runs of this turn
    tokens_before: Tokens = field(default_factory=Tokens)  # of earlier runs
    generation_seconds_before: float = 0.0
    cut_texts: int = 0  # that earlier runs went on with
    carried: PriorRuns = field(default_factory=PriorRuns)  # what earlier runs did, and used up of its limits
    pending_calls: tuple[ToolCall, ...] = ()  # of an earlier run: approved since, or repeatable (A3.9)
    pending_notes: CallNotes = field(default_factory=dict)
    continuing: InterruptedText | None = None
    checks_first_call: bool = False  # the turn waited: its limit may have been used up since it was accepted
    resumes_text: bool = False  # an earlier run's text stands at the end, whole or not

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
        self.is_at_tool_boundary = False  # of a tool group: what people said meanwhile may be taken
        self.tools: ToolRun | None = None
        self.step: ModelStep | None = None  # the one whose tools run
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

    # --- what the turn reads (A3.6) ------------------------------------------------------------------

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
        """How full the window is, for the session's next turn; `through` is the place of the last row."""
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
        """Of active time, that of earlier runs included."""
        return self.ports.clock.now() - self.began_at

    @property
    def is_out_of_time(self) -> bool:
        """Between rounds this ends the turn by itself; inside of one somebody has to look (A10.5)."""
        return self.seconds >= self.limits.max_seconds

    @property
    def has_spoken(self) -> bool:
        """The reply that still streams counts, too."""
        return self.spoke or self.requester.is_speaking

    def unrecorded_call(self) -> ModelCallEnded | None:
        """The end of the model call that was cut off, to be recorded as aborted (A19.5)."""
        return self.compaction.unrecorded_call() or self.requester.unrecorded_call()

    @property
    def open_block(self) -> TextEnded | ReasoningEnded | None:
        """What ends the block that was still streaming."""
        return self.requester.open_block()

    @property
    def open_calls(self) -> tuple[UnfinishedCall, ...]:
        """Calls that need a result, those whose arguments were still streaming among them (A3.5)."""
        if self.tools is not None:
            return self.tools.unfinished_calls()
        proposed = self.requester.proposed_calls()
        return tuple(UnfinishedCall(row_id=uuid4(), call=call, made=False) for call in proposed)

    @property
    def open_step(self) -> StepFinished | None:
        step = self.step or self.requester.open_step()
        return step.finish_event("cancelled") if step else None

    # --- small acts ----------------------------------------------------------------------------------

    def add_message(self, message: ModelMessage) -> None:
        """What the model has not read yet."""
        append_message(self.messages, message)
        self._window_meter.add_characters(count_message_characters(message))

    def add_reply(self, text: str, *, calls: tuple[ToolCall, ...] = (), replay: tuple[str, ...] = ()) -> None:
        """What the model said."""
        self.spoke = self.spoke or bool(text)
        append_message(self.messages, AssistantMessage(text=text, calls=calls, replay=replay))

    def add_note(self, text: str) -> NoteAdded:
        """For the model alone."""
        self.add_message(build_note(text))
        return NoteAdded(row_id=uuid4(), text=text)

    def specifications_by_name(self) -> dict[str, ToolSpecification]:
        return {tool.name: tool for tool in self.ports.toolbox.specifications()}


# MERGED agent.acting: What follows from a reply: the answer, its tools, a note that something was lost, or the end (A2.3).

CONTEXT_FULL_CODE = "context_full"  # what is left of an overflow when nothing could be shortened (A7.5)
CLOSING_LINE = "Done. What was done is shown above."  # A14.7: a turn that worked never ends in silence


def handle_reply(course: LoopState) -> AsyncIterator[LoopOutput]:
    """Do what the model's reply asks for, or what is left to do without one."""
    match course.requester.outcome:
        case AnswerStep() as answer:
            return _finish_with_answer(course, answer)
        case RunToolsStep(calls=calls):
            return _run_tools(course, calls)
        case LostCallsStep(lost=lost):
            return _note_lost_calls(course, lost)
        case HaltStep(calls=calls):
            return _refuse_tools(course, calls)
        case ProviderFailure() as failure:
            return _fail_round(course, failure)
        case unreachable:
            assert_never(unreachable)


async def _finish_with_answer(course: LoopState, answer: AnswerStep) -> AsyncIterator[LoopOutput]:
    attempt, reply = course.requester.successful_attempt()
    if answer.silent:
        for event in attempt.add_synthetic_text(CLOSING_LINE):
            yield event
    course.add_reply(CLOSING_LINE if answer.silent else reply.text)
    for event in attempt.step.finish(reply.finish):
        yield event
    if answer.truncated:
        yield NoticeAdded(row_id=uuid4(), code="output_truncated")
    course.ending = LoopAnswered()


async def _note_lost_calls(course: LoopState, lost: tuple[str, ...]) -> AsyncIterator[LoopOutput]:
    attempt, reply = course.requester.successful_attempt()
    course.add_reply(reply.text)
    for event in attempt.step.finish(reply.finish):
        yield event
    yield course.add_note(LOST_CALLS_NOTE.format(tools=", ".join(lost)))


async def _run_tools(
    course: LoopState, calls: Sequence[ToolCall], *, refused: str = ""
) -> AsyncIterator[LoopOutput]:
    attempt, reply = course.requester.successful_attempt()
    course.add_reply(reply.text, calls=tuple(prepare_for_replay(call) for call in calls), replay=reply.replay)
    run = _start_tool_run(course, calls, attempt.step, refused=refused)
    for made in chain(run.announce_calls(), collect_replay(attempt, reply, run.rows)):
        yield made
    async with aclosing_iterator(_run_until_pause(course, run)) as parts:
        async for part in parts:
            yield part
    if run.calls_to_approve:
        return
    course.add_message(run.to_message())
    for part in _finish_tool_run(course, run, reply.finish):
        yield part


async def _run_until_pause(course: LoopState, run: ToolRun) -> AsyncIterator[LoopOutput]:
    """Until every call has its result, or a person is asked, for whom the turn pauses."""
    async with aclosing_iterator(run.run()) as parts:
        async for part in parts:
            yield part
    if run.calls_to_approve:
        for part in _pause_for_approval(course, run):
            yield part


async def _refuse_tools(course: LoopState, calls: Sequence[ToolCall]) -> AsyncIterator[LoopOutput]:
    """The last permitted round asked for more: its calls are answered, and the turn ends (A10.1)."""
    for parts in (
        _run_tools(course, calls, refused=ROUND_LIMIT_MESSAGE),
        end_loop_at_limit(course, ReachedLimit(code="round_limit")),
    ):
        async with aclosing_iterator(parts):
            async for part in parts:
                yield part


async def _fail_round(course: LoopState, failure: ProviderFailure) -> AsyncIterator[LoopOutput]:
    """Nothing more can be tried. What was produced stays, and no call is left without a result (A3.5)."""
    step = course.requester.last_step()
    run = _start_tool_run(course, course.requester.proposed_calls(), step, refused=REPLY_BROKEN_OFF_MESSAGE)
    for part in chain(course.requester.end_interrupted_text(), run.announce_calls()):
        yield part
    async with aclosing_iterator(run.run()) as parts:
        async for part in parts:
            yield part
    for part in _finish_tool_run(course, run, failure.code):
        yield part
    limit = course.requester.limit
    code = CONTEXT_FULL_CODE if course.requester.has_overflowed else failure.code
    source = FailureSource(provider=failure.provider, model=failure.model, request_id=failure.request_id)
    course.ending = LoopFailed(code=limit.code if limit else code, details=failure.details, source=source)


async def end_loop_at_limit(course: LoopState, limit: ReachedLimit) -> AsyncIterator[LoopOutput]:
    """A limit of A10 ends the turn: as answered when something was said, else as failed (A10.6)."""
    for event in course.requester.end_interrupted_text():
        yield event
    if course.spoke:
        yield NoticeAdded(row_id=uuid4(), code=limit.code, details=limit.details)
    spoke, code = course.spoke, limit.code
    course.ending = LoopAnswered(limit_code=code) if spoke else LoopFailed(code=code, details=limit.details)


async def run_pending_calls(course: LoopState) -> AsyncIterator[LoopOutput]:
    """Calls that an earlier run left open and that may run now (A3.9, A11.10); their rows stand."""
    if not course.pending_calls:
        return
    step = ModelStep(round=max(course.rounds, 1))
    yield step.start_event()
    run = _start_tool_run(course, course.pending_calls, step, notes=course.pending_notes)
    run.mark_calls_recorded()
    async with aclosing_iterator(_run_until_pause(course, run)) as parts:
        async for part in parts:
            yield part
    if run.calls_to_approve:
        return
    replace_results(course.messages, run.to_message())
    course.pending_calls = ()
    for part in _finish_tool_run(course, run, "resumed"):
        yield part


def _start_tool_run(
    course: LoopState,
    calls: Sequence[ToolCall],
    step: ModelStep,
    *,
    refused: str = "",
    notes: CallNotes | None = None,
) -> ToolRun:
    course.step = step
    most = course.limits.calls_per_reply
    course.tools = ToolRun(
        calls, course.ports, most=most, refused=refused, notes=notes, before=course.messages
    )
    return course.tools


def _pause_for_approval(course: LoopState, run: ToolRun) -> Iterator[LoopOutput]:
    """The step is over, its calls are not: they stay open until somebody has decided (A11.3)."""
    if course.step is not None:
        yield from course.step.finish("paused")
    course.step = None
    course.ending = LoopPaused(asked=run.calls_to_approve)


def _finish_tool_run(course: LoopState, run: ToolRun, reason: str) -> Iterator[LoopOutput]:
    notes = course.guards.record_tool_group(run.calls, run.outcomes, course.specifications_by_name())
    if course.step is not None:
        yield from course.step.finish(reason)
    course.tools = course.step = None
    course.ran_tools = course.is_at_tool_boundary = True
    for text in notes:
        yield course.add_note(text)


# MERGED agent.loop: Asks the model and does what it asks, round after round, until an answer, a limit or a failure (A2).


class AgentLoop(LoopState):
    """One turn's rounds. Cancelling the task that plays it stops it."""

    @property
    def can_start_round(self) -> bool:
        """Another round may begin, unless money is short; if not, what is queued needs its own turn (T6.3)."""
        return self._find_limit() is None

    async def can_pay(self) -> bool:
        return await self.budget_guard.check_within_round() is None

    def add_follow_ups(self, messages: Sequence[UserMessage]) -> None:
        """Take up what was said after the answer, so that `play` can be called again in the same turn."""
        for message in messages:
            self.add_message(message)
        self.ran_tools = False
        self.ending = None

    async def run(self) -> AsyncGenerator[LoopOutput, None]:
        """Everything that happens, then exactly one ending of this run."""
        async with aclosing_iterator(run_pending_calls(self)) as parts:
            async for part in parts:
                yield part
        while self.ending is None:
            limit = self._find_limit() or await self._find_budget_limit()
            async with aclosing_iterator(
                self._run_round() if limit is None else end_loop_at_limit(self, limit)
            ) as parts:
                async for part in parts:
                    yield part
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
            async with aclosing_iterator(stage()) as parts:
                async for part in parts:
                    yield part
            if self.ending is not None:
                return

    async def _prepare_round(self) -> AsyncIterator[LoopOutput]:
        """Before the model reads it, a conversation that fills its window becomes shorter (A17.1)."""
        if self.compaction.is_due():
            async with aclosing_iterator(self._compact(forced=False)) as parts:
                async for part in parts:
                    yield part
            async with aclosing_iterator(self._end_if_out_of_budget()) as parts:
                async for part in parts:
                    yield part
            if self.ending is not None:
                return
        await self._take_follow_ups()
        if self.guards.is_last_round(self.rounds):
            yield self.add_note(LAST_ROUND_NOTE)

    async def _request_reply(self) -> AsyncIterator[LoopOutput]:
        """One reply; a conversation that the model refuses as too long is shortened and sent again (A7.5)."""
        state = RoundState(last_round=self.guards.is_last_round(self.rounds), ran_tools=self.ran_tools)
        while True:
            async with aclosing_iterator(
                self.requester.request_reply(self.messages, round_number=self.rounds, state=state)
            ) as parts:
                async for part in parts:
                    yield part
            if not self.requester.has_overflowed:
                async with aclosing_iterator(
                    continue_cut_text(self.requester, self.messages, state=state)
                ) as parts:
                    async for part in parts:
                        yield part
                return
            shorten = self.compaction.can_force() and not await self.requester.is_out_of_budget()
            if shorten:
                async with aclosing_iterator(self._compact(forced=True)) as parts:
                    async for part in parts:
                        yield part
            if shorten and self.compaction.succeeded:
                async with aclosing_iterator(self._end_if_out_of_budget()) as parts:
                    async for part in parts:
                        yield part
                if self.ending is not None:
                    return
                continue
            larger = await self.requester.fall_back_to_larger_window(
                self.messages, in_tool_loop=self.ran_tools
            )
            for part in larger:
                yield part
            if not larger:
                return

    async def _compact(self, *, forced: bool) -> AsyncIterator[LoopOutput]:
        """Only at a complete tool group: that is where rounds begin (A17.2)."""
        async with aclosing_iterator(self.compaction.compact(self.messages, forced=forced)) as parts:
            async for part in parts:
                yield part
        if not self.compaction.succeeded:
            for given_up in () if forced else (self.compaction.give_up(),):
                yield given_up
            return
        for left in self.requester.abandon_step() if forced else ():
            yield left
        if self.ran_tools:
            yield self.add_note(COMPACTED_NOTE)

    async def _end_if_out_of_budget(self) -> AsyncIterator[LoopOutput]:
        """A summary may have cost what was left (A10.4, B6.10)."""
        if (limit := await self.budget_guard.check_within_round()) is not None:
            async with aclosing_iterator(end_loop_at_limit(self, limit)) as parts:
                async for part in parts:
                    yield part

    async def _take_follow_ups(self) -> None:
        """At a tool boundary alone, and only when the turn goes on (A13.7)."""
        if self.is_at_tool_boundary:
            self.is_at_tool_boundary = False
            for message in await self.ports.follow_ups.take_follow_ups():
                self.add_message(message)
