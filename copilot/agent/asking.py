"""Gets one reply from the model: builds the request, tries again as the schedule allows, keeps the sums (A7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace

from copilot.agent.conversation import call_ids, extend_last_reply
from copilot.agent.guards import State
from copilot.agent.metering import Meter, add
from copilot.agent.parts import ModelCallEnded, Produced
from copilot.agent.ports import Ports, closed
from copilot.agent.replies import Attempt, Block, Continuing, Step
from copilot.agent.retries import Retries, Wait
from copilot.agent.steps import Answer, Halt, Nudge, Reply, RunTools, next_step
from copilot.events import ModelRetrying, ReasoningEnded, StepRetracted, TextEnded, Tokens
from copilot.notices import NOTICES
from copilot.providers.base import Entry, ModelMessage, ProviderFailure, Request, ToolCall

Outcome = Answer | RunTools | Nudge | Halt | ProviderFailure


@dataclass(kw_only=True, eq=False)
class Asker:
    """Asks for one turn. After `ask`, `outcome` says what follows and `attempt` holds the reply."""

    system: str
    suffix: str
    entry: Entry
    ports: Ports
    thinking_tokens: int
    retries: Retries
    deadline: float  # on the ports' clock; no wait passes it
    call_number: int
    continuing: Continuing | None

    attempt: Attempt | None = field(init=False, default=None)
    outcome: Outcome = field(init=False, default_factory=Answer)
    waiting: bool = field(init=False, default=False)
    tokens: Tokens = field(init=False, default_factory=Tokens)
    first_token_at: float | None = field(init=False, default=None)
    generation_seconds: float = field(init=False, default=0.0)

    async def ask(
        self, messages: list[ModelMessage], *, round_number: int, state: State
    ) -> AsyncIterator[Produced]:
        self.retries.begin_round()
        while True:
            attempt = self._begin(messages, round_number)
            async with closed(attempt.play(self.ports.provider)) as parts:
                async for part in parts:
                    yield part
            self._account(attempt)
            self.outcome = self._judge(attempt, state)
            if not isinstance(self.outcome, ProviderFailure):
                self.continuing = None
                return
            self._keep_resumed(attempt, messages)
            wait = self._wait_after(self.outcome, attempt)
            if wait is None:
                return
            for event in _announced(attempt, self.outcome, wait):
                yield event
            await self._sleep(wait)

    # --- what stands open after a cancellation -------------------------------------------------------

    def open_call(self) -> ModelCallEnded | None:
        return self.attempt.meter.left_open() if self.attempt else None

    def open_block(self) -> TextEnded | ReasoningEnded | None:
        if self.attempt is not None and self.attempt.block is not None:
            return self.attempt.block.ended()
        return None if self.continuing is None else Block.resuming(self.continuing).ended()

    def open_step(self) -> Step | None:
        return None if self.attempt is None or self.attempt.step.over else self.attempt.step

    def proposed(self) -> list[ToolCall]:
        """Calls of a reply that never became complete, or was not taken up yet."""
        return [] if self.attempt is None or self.attempt.step.over else self.attempt.proposed()

    # --- for the loop --------------------------------------------------------------------------------

    def replied(self) -> tuple[Attempt, Reply]:
        """The try that worked. Only asked for after an outcome that is no failure."""
        assert self.attempt is not None
        assert self.attempt.reply is not None
        return self.attempt, self.attempt.reply

    def last_step(self) -> Step:
        assert self.attempt is not None
        return self.attempt.step

    def end_interrupted(self) -> Iterator[Produced]:
        """The row that waited to be continued ends as it is."""
        if self.continuing is not None:
            yield Block.resuming(self.continuing).ended()
            self.continuing = None

    # --- one try -------------------------------------------------------------------------------------

    def _begin(self, messages: list[ModelMessage], round_number: int) -> Attempt:
        request = Request(
            entry=self.entry,
            system=self.system,
            suffix=self.suffix,
            messages=tuple(messages),
            tools=self.ports.toolbox.specifications() if self.entry.supports_tools else (),
            thinking_tokens=self.thinking_tokens,
        )
        number = self.call_number
        meter = Meter(request, call_id=self.ports.call_id(number), number=number, now=self.ports.clock.now)
        self.call_number += 1
        self.retries.count_request(self.entry.name)
        self.attempt = Attempt(
            request,
            step=Step(round=round_number),
            meter=meter,
            taken_ids=call_ids(messages),
            continuing=self.continuing,
        )
        return self.attempt

    def _account(self, attempt: Attempt) -> None:
        self.tokens = add(self.tokens, attempt.meter.tokens)
        self.generation_seconds += attempt.meter.generation_seconds
        if self.first_token_at is None:
            self.first_token_at = attempt.meter.first_at

    def _judge(self, attempt: Attempt, state: State) -> Outcome:
        if attempt.reply is None:
            return attempt.failure or ProviderFailure("unknown")
        step = next_step(attempt.reply, replace(state, continues_text=self.continuing is not None))
        if isinstance(step, Halt) and step.code != "round_limit":
            return ProviderFailure(step.code)
        return step

    def _keep_resumed(self, attempt: Attempt, messages: list[ModelMessage]) -> None:
        """What a failed try added to the interrupted row stays there, and the next try goes on from it."""
        if attempt.resumed is not None:
            self.continuing = None
            extend_last_reply(messages, "".join(attempt.resumed.parts))

    # --- trying again --------------------------------------------------------------------------------

    def _wait_after(self, failure: ProviderFailure, attempt: Attempt) -> Wait | None:
        seconds_left = self.deadline - self.ports.clock.now()
        return self.retries.after(
            failure, model=self.entry.name, shown=attempt.shown, seconds_left=seconds_left
        )

    async def _sleep(self, wait: Wait) -> None:
        self.waiting = True
        try:
            await self.ports.clock.sleep(wait.delay_seconds)
        finally:
            self.waiting = False


def _announced(attempt: Attempt, failure: ProviderFailure, wait: Wait) -> Iterator[Produced]:
    step = attempt.step
    if attempt.shown:
        yield StepRetracted(
            step_id=step.id,
            round=step.round,
            failure_class=failure.code,
            row_ids=[str(block.row_id) for block in attempt.rows],
        )
    else:
        yield step.finished("failed")
    step.over = True
    yield ModelRetrying(
        failure_class=failure.code,
        label=NOTICES[failure.code].label,
        delay_seconds=round(wait.delay_seconds, 3),
        attempt=wait.attempt,
        attempts=wait.attempts,
    )
