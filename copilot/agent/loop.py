"""Asks the model and does what it asks, round after round, until an answer, a limit or a failure (A2)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import assert_never
from uuid import uuid4

from copilot.agent.asking import Asker
from copilot.agent.carried import Carried
from copilot.agent.continuation import go_on
from copilot.agent.conversation import append, last_reply, note, replace_results
from copilot.agent.fullness import Fullness
from copilot.agent.guards import CUT_OFF, LAST_ROUND, SHORTENED, Guards, Limit, Limits, State
from copilot.agent.metering import length
from copilot.agent.parts import (
    Answered,
    Ending,
    Failed,
    ModelCallEnded,
    NoteMade,
    NoticeMade,
    Paused,
    Produced,
)
from copilot.agent.ports import Ports, closed
from copilot.agent.purse import Purse
from copilot.agent.replies import Continuing, Step, kept_replay
from copilot.agent.retries import Policy, Retries
from copilot.agent.shortening import Shortening
from copilot.agent.steps import Answer, Halt, Nudge, RunTools
from copilot.agent.toolruns import OpenCall, ToolRun
from copilot.events import ContextUse, Phase, ReasoningEnded, StepFinished, TextEnded, Tokens
from copilot.notices import Source
from copilot.providers.base import (
    AssistantMessage,
    Entry,
    ModelMessage,
    ProviderFailure,
    ToolCall,
    ToolSpecification,
    UserMessage,
)
from copilot.tools.calls import FAILED_BEFORE_IT_RAN, NOT_EXECUTED, replayed

Notes = Mapping[str, str]  # for the model, before a call's result
CONTEXT_FULL = "context_full"  # what is left of an overflow when nothing could be shortened (A7.5)
CLOSING_LINE = "Done. What was done is shown above."  # A14.7: a turn that worked never ends in silence


@dataclass(kw_only=True, eq=False)
class Loop:
    """One turn's rounds. Cancelling the task that plays it stops it; `open_…` then say what stands open."""

    system: str
    messages: list[ModelMessage]
    chain: tuple[Entry, ...]
    ports: Ports
    suffix: str = ""
    limits: Limits = field(default_factory=Limits)
    retrying: Policy = field(default_factory=Policy)
    thinking_tokens: int = 0
    fullness: Fullness | None = None  # of the window, as earlier turns left it; None: estimated here
    first_call_number: int = 1
    first_round: int = 1
    elapsed_seconds: float = 0.0  # active time of earlier runs of this turn
    tokens_before: Tokens = field(default_factory=Tokens)  # of earlier runs
    generation_seconds_before: float = 0.0
    cut_texts: int = 0  # that earlier runs went on with
    carried: Carried = field(default_factory=Carried)  # of the turn's limits, used by earlier runs
    pending_calls: tuple[ToolCall, ...] = ()  # of an earlier run: approved since, or repeatable (A3.9)
    pending_notes: Notes = field(default_factory=dict)
    continuing: Continuing | None = None
    resumes_text: bool = False  # an earlier run's text stands at the end, whole or not

    def __post_init__(self) -> None:
        began_at = self.ports.clock.now() - self.elapsed_seconds
        beyond_rounds = max(0, self.first_call_number - self.first_round)
        self.rounds = self.first_round - 1
        self._began_at = began_at
        self._purse = Purse(self.ports.budget, resumed=self.first_call_number > 1)
        self.asker = Asker(
            system=self.system,
            suffix=self.suffix,
            chain=self.chain,
            ports=self.ports,
            purse=self._purse,
            thinking_tokens=self.thinking_tokens,
            retries=Retries(
                policy=self.retrying, requests_beyond_rounds=beyond_rounds, before=self.carried.requests
            ),
            deadline=began_at + self.limits.max_seconds,
            call_number=self.first_call_number,
            continuing=self.continuing,
            resumes_text=self.resumes_text or self.continuing is not None,
            continuations=max(0, self.limits.continuations - self.cut_texts),
            tokens=self.tokens_before,
            generation_seconds=self.generation_seconds_before,
        )
        self._fullness = self.fullness or Fullness(self.asker.estimated(self.messages))
        self.asker.fullness = self._fullness
        self.shortening = Shortening(
            self.ports.compactor, self.asker, self._fullness, self.limits, carried=self.carried
        )
        self._guards = Guards(self.limits, polling=self.ports.toolbox.polling())
        said, answered = last_reply(self.messages) if self.first_call_number > 1 else ("", False)
        self.asker.take_up(self.carried.requests, self.messages, in_tool_loop=answered)
        for group in self.carried.groups:
            self._guards.observe(group.calls, group.outcomes, self._specifications())
        self._ran_tools = answered
        self._spoke = bool(said)
        self._at_boundary = False
        self._tools: ToolRun | None = None
        self._step: Step | None = None  # the one whose tools run
        self._ending: Ending | None = None

    # --- what the turn reads (A3.6) ------------------------------------------------------------------

    @property
    def tokens(self) -> Tokens:
        return self.asker.tokens

    @property
    def first_token_at(self) -> float | None:
        return self.asker.first_token_at

    @property
    def generation_seconds(self) -> float:
        return self.asker.generation_seconds

    @property
    def entry(self) -> Entry:
        return self.asker.entry

    def context_use(self, *, through: int) -> ContextUse:
        """How full the window is, for the session's next turn; `through` is the place of the last row."""
        return self._fullness.use(window=self.entry.context_window, through=through)

    @property
    def phase(self) -> Phase:
        if self._tools is not None:
            return "question" if self._tools.questions else "tool"
        if self.shortening.under_way:
            return "compaction"
        return "retry" if self.asker.waiting else "model"

    def open_call(self) -> ModelCallEnded | None:
        """The end of the model call that was cut off, to be recorded as aborted (A19.5)."""
        return self.shortening.open_call() or self.asker.open_call()

    @property
    def open_block(self) -> TextEnded | ReasoningEnded | None:
        """What ends the block that was still streaming."""
        return self.asker.open_block()

    @property
    def open_calls(self) -> tuple[OpenCall, ...]:
        """Calls that need a result, those whose arguments were still streaming among them (A3.5)."""
        if self._tools is not None:
            return self._tools.open_calls()
        proposed = self.asker.proposed()
        return tuple(OpenCall(row_id=uuid4(), call=call, made=False) for call in proposed)

    @property
    def open_step(self) -> StepFinished | None:
        step = self._step or self.asker.open_step()
        return step.finished("cancelled") if step else None

    # --- playing -------------------------------------------------------------------------------------

    @property
    def can_go_on(self) -> bool:
        """Another round may begin, unless money is short; if not, what is queued needs its own turn (T6.3)."""
        return self._limit() is None

    async def can_pay(self) -> bool:
        return await self._purse.inside_round() is None

    def go_on(self, messages: Sequence[UserMessage]) -> None:
        """Take up what was said after the answer, so that `play` can be called again in the same turn."""
        for message in messages:
            self._add(message)
        self._ran_tools = False
        self._ending = None

    async def play(self) -> AsyncGenerator[Produced, None]:
        """Everything that happens, then exactly one ending of this run."""
        async with closed(self._run_pending()) as parts:
            async for part in parts:
                yield part
        while self._ending is None:
            limit = self._limit() or await self._short_of_money()
            async with closed(self._round() if limit is None else self._end_at(limit)) as parts:
                async for part in parts:
                    yield part
        yield self._ending

    def _limit(self) -> Limit | None:
        seconds = self.ports.clock.now() - self._began_at
        code = self._guards.limit(next_round=self.rounds + 1, seconds=seconds)
        return None if code is None else Limit(code=code)

    async def _short_of_money(self) -> Limit | None:
        return await self._purse.before_round() if self.asker.call_number > 1 else None

    async def _round(self) -> AsyncIterator[Produced]:
        self.rounds += 1
        self.asker.retries.begin_round()
        for stage in (self._make_room, self._ask, self._act):
            async with closed(stage()) as parts:
                async for part in parts:
                    yield part
            if self._ending is not None:
                return

    async def _make_room(self) -> AsyncIterator[Produced]:
        """Before the model reads it, a conversation that fills its window becomes shorter (A17.1)."""
        if self.shortening.is_due():
            async with closed(self._shorten(forced=False)) as parts:
                async for part in parts:
                    yield part
            async with closed(self._end_if_short()) as parts:
                async for part in parts:
                    yield part
            if self._ending is not None:
                return
        await self._take_follow_ups()
        if self._guards.is_last(self.rounds):
            yield self._note(LAST_ROUND)

    async def _ask(self) -> AsyncIterator[Produced]:
        """One reply; a conversation that the model refuses as too long is shortened and sent again (A7.5)."""
        state = State(last_round=self._guards.is_last(self.rounds), ran_tools=self._ran_tools)
        while True:
            async with closed(self.asker.ask(self.messages, round_number=self.rounds, state=state)) as parts:
                async for part in parts:
                    yield part
            if not self.asker.overflowed:
                async with closed(go_on(self.asker, self.messages, state=state)) as parts:
                    async for part in parts:
                        yield part
                return
            shorten = self.shortening.may_force() and not await self.asker.is_short_of_money()
            if shorten:
                async with closed(self._shorten(forced=True)) as parts:
                    async for part in parts:
                        yield part
            if shorten and self.shortening.succeeded:
                async with closed(self._end_if_short()) as parts:
                    async for part in parts:
                        yield part
                if self._ending is not None:
                    return
                continue
            larger = await self.asker.go_larger(self.messages, in_tool_loop=self._ran_tools)
            for part in larger:
                yield part
            if not larger:
                return

    async def _shorten(self, *, forced: bool) -> AsyncIterator[Produced]:
        """Only at a complete tool group: that is where rounds begin (A17.2)."""
        async with closed(self.shortening.play(self.messages, forced=forced)) as parts:
            async for part in parts:
                yield part
        if not self.shortening.succeeded:
            for given_up in () if forced else (self.shortening.give_up(),):
                yield given_up
            return
        for left in self.asker.leave_step() if forced else ():
            yield left
        if self._ran_tools:
            yield self._note(SHORTENED)

    async def _end_if_short(self) -> AsyncIterator[Produced]:
        """A summary may have cost what was left (A10.4, B6.10)."""
        if (limit := await self._purse.inside_round()) is not None:
            async with closed(self._end_at(limit)) as parts:
                async for part in parts:
                    yield part

    async def _take_follow_ups(self) -> None:
        """At a tool boundary alone, and only when the turn goes on (A13.7)."""
        if self._at_boundary:
            self._at_boundary = False
            for message in await self.ports.follow_ups.take():
                self._add(message)

    def _act(self) -> AsyncIterator[Produced]:
        match self.asker.outcome:
            case Answer() as answer:
                return self._answer(answer)
            case RunTools(calls=calls):
                return self._run_tools(calls)
            case Nudge(lost=lost):
                return self._nudge(lost)
            case Halt(calls=calls):
                return self._refuse_tools(calls)
            case ProviderFailure() as failure:
                return self._fail(failure)
            case unreachable:
                assert_never(unreachable)

    # --- what follows from a reply -------------------------------------------------------------------

    async def _answer(self, answer: Answer) -> AsyncIterator[Produced]:
        attempt, reply = self.asker.replied()
        if answer.silent:
            for event in attempt.say(CLOSING_LINE):
                yield event
        self._keep(CLOSING_LINE if answer.silent else reply.text)
        for event in attempt.step.finish(reply.finish):
            yield event
        if answer.truncated:
            yield NoticeMade(row_id=uuid4(), code="output_truncated")
        self._ending = Answered()

    async def _nudge(self, lost: tuple[str, ...]) -> AsyncIterator[Produced]:
        attempt, reply = self.asker.replied()
        self._keep(reply.text)
        for event in attempt.step.finish(reply.finish):
            yield event
        yield self._note(CUT_OFF.format(tools=", ".join(lost)))

    async def _run_tools(self, calls: Sequence[ToolCall], *, refused: str = "") -> AsyncIterator[Produced]:
        attempt, reply = self.asker.replied()
        self._keep(reply.text, calls=tuple(replayed(call) for call in calls), replay=reply.replay)
        run = self._begin_tools(calls, attempt.step, refused=refused)
        for made in chain(run.make_calls(), kept_replay(attempt, reply, run.rows)):
            yield made
        async with closed(run.play()) as parts:
            async for part in parts:
                yield part
        if run.asked:
            for part in self._pause(run):
                yield part
            return
        self._add(run.group())
        for part in self._end_tools(run, reply.finish):
            yield part

    async def _refuse_tools(self, calls: Sequence[ToolCall]) -> AsyncIterator[Produced]:
        """The last permitted round asked for more: its calls are answered, and the turn ends (A10.1)."""
        for parts in (self._run_tools(calls, refused=NOT_EXECUTED), self._end_at(Limit(code="round_limit"))):
            async with closed(parts):
                async for part in parts:
                    yield part

    async def _fail(self, failure: ProviderFailure) -> AsyncIterator[Produced]:
        """Nothing more can be tried. What was produced stays, and no call is left without a result (A3.5)."""
        step = self.asker.last_step()
        run = self._begin_tools(self.asker.proposed(), step, refused=FAILED_BEFORE_IT_RAN)
        for part in chain(self.asker.end_interrupted(), run.make_calls()):
            yield part
        async with closed(run.play()) as parts:
            async for part in parts:
                yield part
        for part in self._end_tools(run, failure.code):
            yield part
        limit = self.asker.limit
        code = CONTEXT_FULL if self.asker.overflowed else failure.code
        source = Source(provider=failure.provider, model=failure.model, request_id=failure.request_id)
        self._ending = Failed(code=limit.code if limit else code, details=failure.details, source=source)

    async def _end_at(self, limit: Limit) -> AsyncIterator[Produced]:
        """A limit of A10 ends the turn: as answered when something was said, else as failed (A10.6)."""
        for event in self.asker.end_interrupted():
            yield event
        if self._spoke:
            yield NoticeMade(row_id=uuid4(), code=limit.code, details=limit.details)
        spoke, code = self._spoke, limit.code
        self._ending = Answered(limit_code=code) if spoke else Failed(code=code, details=limit.details)

    async def _run_pending(self) -> AsyncIterator[Produced]:
        """Calls that an earlier run left open and that may run now (A3.9, A11.10); their rows stand."""
        if not self.pending_calls:
            return
        step = Step(round=max(self.rounds, 1))
        yield step.started()
        run = self._begin_tools(self.pending_calls, step, notes=self.pending_notes)
        run.calls_stand()
        async with closed(run.play()) as parts:
            async for part in parts:
                yield part
        if run.asked:
            for part in self._pause(run):
                yield part
            return
        replace_results(self.messages, run.group())
        self.pending_calls = ()
        for part in self._end_tools(run, "resumed"):
            yield part

    # --- small acts ----------------------------------------------------------------------------------

    def _begin_tools(
        self, calls: Sequence[ToolCall], step: Step, *, refused: str = "", notes: Notes | None = None
    ) -> ToolRun:
        self._step = step
        most = self.limits.calls_per_reply
        self._tools = ToolRun(
            calls, self.ports, most=most, refused=refused, notes=notes, before=self.messages
        )
        return self._tools

    def _pause(self, run: ToolRun) -> Iterator[Produced]:
        """The step is over, its calls are not: they stay open until somebody has decided (A11.3)."""
        if self._step is not None:
            yield from self._step.finish("paused")
        self._step = None
        self._ending = Paused(asked=run.asked)

    def _end_tools(self, run: ToolRun, reason: str) -> Iterator[Produced]:
        notes = self._guards.observe(run.calls, run.outcomes, self._specifications())
        if self._step is not None:
            yield from self._step.finish(reason)
        self._tools = self._step = None
        self._ran_tools = self._at_boundary = True
        for text in notes:
            yield self._note(text)

    def _specifications(self) -> dict[str, ToolSpecification]:
        return {tool.name: tool for tool in self.ports.toolbox.specifications()}

    def _add(self, message: ModelMessage) -> None:
        """What the model has not read yet."""
        append(self.messages, message)
        self._fullness.add(length(message))

    def _keep(self, text: str, *, calls: tuple[ToolCall, ...] = (), replay: tuple[str, ...] = ()) -> None:
        self._spoke = self._spoke or bool(text)
        append(self.messages, AssistantMessage(text=text, calls=calls, replay=replay))

    def _note(self, text: str) -> NoteMade:
        self._add(note(text))
        return NoteMade(row_id=uuid4(), text=text)
