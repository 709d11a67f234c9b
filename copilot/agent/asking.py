"""Gets one reply from a model: builds the request; waits, heals or switches after a failure; keeps the sums (A7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace

from copilot.agent.conversation import call_ids, extend_last_reply, without_replay
from copilot.agent.fallback import Fallback, Needs
from copilot.agent.fullness import Fullness
from copilot.agent.guards import Limit, State
from copilot.agent.healing import Healing
from copilot.agent.media import behind_groups, without_images
from copilot.agent.metering import Meter, add, estimate, size
from copilot.agent.parts import ModelCallEnded, Produced
from copilot.agent.ports import Compaction, Ports, closed
from copilot.agent.purse import Purse
from copilot.agent.replies import Attempt, Block, Continuing, Step
from copilot.agent.retries import Retries, Wait
from copilot.agent.steps import Answer, Halt, Nudge, Reply, RunTools, next_step
from copilot.events import (
    ModelHealed,
    ModelRetrying,
    ModelSwitched,
    ReasoningEnded,
    StepRetracted,
    TextEnded,
    Tokens,
)
from copilot.notices import NOTICES
from copilot.providers.base import Entry, ModelMessage, ProviderFailure, Request, ToolCall

Outcome = Answer | RunTools | Nudge | Halt | ProviderFailure
Remedy = Wait | ModelHealed | ModelSwitched


@dataclass(kw_only=True, eq=False)
class Asker:
    """Asks for one turn. After `ask`, `outcome` says what follows and `attempt` holds the reply."""

    system: str
    suffix: str
    chain: tuple[Entry, ...]
    ports: Ports
    purse: Purse
    thinking_tokens: int
    retries: Retries
    deadline: float  # on the ports' clock; no wait passes it
    call_number: int
    continuing: Continuing | None

    entry: Entry = field(init=False)  # the one that is asked now
    attempt: Attempt | None = field(init=False, default=None)
    outcome: Outcome = field(init=False, default_factory=Answer)
    fullness: Fullness = field(init=False)
    waiting: bool = field(init=False, default=False)
    limit: Limit | None = field(init=False, default=None)  # why a failed call was not tried again
    tokens: Tokens = field(init=False, default_factory=Tokens)
    first_token_at: float | None = field(init=False, default=None)
    generation_seconds: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.entry = self.chain[0]
        self._fallback = Fallback(self.chain)
        self._healing = Healing(self.ports.learned, thinking_tokens=self.thinking_tokens)

    async def ask(
        self, messages: list[ModelMessage], *, round_number: int, state: State
    ) -> AsyncIterator[Produced]:
        """One round's reply. `messages` changes when what is in them cannot go to the model that goes on."""
        while True:
            attempt = self._begin(messages, round_number)
            async with closed(attempt.play(self.ports.provider)) as parts:
                async for part in parts:
                    yield part
            self._account(attempt)
            self.outcome = self._judge(attempt, state)
            if not isinstance(self.outcome, ProviderFailure):
                self.continuing = None
                self._healing.accepted(self.entry)
                return
            self._keep_resumed(attempt, messages)
            remedy = await self._remedy(self.outcome, attempt, messages, in_tool_loop=state.ran_tools)
            if remedy is None or await self.is_short_of_money():
                self.outcome = self._final(self.outcome)
                return
            for event in _announced(attempt, self.outcome, remedy):
                yield event
            if isinstance(remedy, Wait):
                await self._sleep(remedy)

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

    @property
    def overflowed(self) -> bool:
        """The last try failed because the conversation is too long for the model."""
        return isinstance(self.outcome, ProviderFailure) and self.outcome.code == "context_overflow"

    def may_ask_again(self) -> bool:
        """Whether the round has a try left after the one that failed."""
        shown = self.attempt is not None and self.attempt.shown
        return self.retries.can_send(self.entry.name, shown=shown)

    async def is_short_of_money(self) -> bool:
        """Before a further call of the round; `limit` then says why there is none (A10.4)."""
        self.limit = await self.purse.inside_round()
        return self.limit is not None

    def leave_step(self) -> Iterator[Produced]:
        """The try that failed is over for clients: another follows."""
        assert self.attempt is not None
        assert isinstance(self.outcome, ProviderFailure)
        self.retries.spend_request(shown=self.attempt.shown)
        yield from _left(self.attempt, self.outcome)

    def take_number(self) -> int:
        """The next model call is another's: it counts among the turn's requests all the same (A7.2)."""
        number = self.call_number
        self.call_number += 1
        self.retries.count_request(self.entry.name)
        self.retries.spend_request(shown=False)
        return number

    def estimated(self, messages: list[ModelMessage]) -> int:
        """Tokens of a request that no provider has counted yet."""
        return estimate(size(self._request(messages)))

    def compaction(
        self, messages: list[ModelMessage], *, tokens_before: int, forced: bool, focus: str
    ) -> Compaction:
        return Compaction(
            entry=self.entry,
            messages=tuple(messages),
            fixed_tokens=self.estimated([]),
            tokens_before=tokens_before,
            forced=forced,
            focus=focus,
        )

    def end_interrupted(self) -> Iterator[Produced]:
        """The row that waited to be continued ends as it is."""
        if self.continuing is not None:
            yield Block.resuming(self.continuing).ended()
            self.continuing = None

    # --- one try -------------------------------------------------------------------------------------

    def _request(self, messages: list[ModelMessage]) -> Request:
        """The conversation as the present model can take it (A7.4, A7.6)."""
        entry, healing = self.entry, self._healing
        return Request(
            entry=entry,
            system=self.system,
            suffix=self.suffix,
            messages=self._shown(messages),
            tools=self.ports.toolbox.specifications() if entry.supports_tools else (),
            thinking_tokens=healing.thinking_tokens(entry),
            effort=healing.effort(entry),
        )

    def _shown(self, messages: list[ModelMessage]) -> tuple[ModelMessage, ...]:
        """Pictures where this model takes them, or words about them (A9.9, A16.5)."""
        if not self._healing.sees(self.entry):
            return tuple(without_images(messages))
        return tuple(messages if self.entry.media_in_tool_results else behind_groups(messages))

    def _begin(self, messages: list[ModelMessage], round_number: int) -> Attempt:
        request = self._request(messages)
        number = self.call_number
        meter = Meter(request, call_id=self.ports.call_id(number), number=number, now=self.ports.clock.now)
        self.call_number += 1
        self.retries.count_request(self.entry.name)
        self.attempt = Attempt(
            request,
            step=Step(round=round_number, call=number),
            meter=meter,
            taken_ids=call_ids(messages),
            continuing=self.continuing,
        )
        return self.attempt

    def _account(self, attempt: Attempt) -> None:
        self.tokens = add(self.tokens, attempt.meter.tokens)
        self.generation_seconds += attempt.meter.generation_seconds
        if attempt.reply is not None:
            self.fullness.replied(attempt.meter.tokens, estimated=attempt.meter.estimated)
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

    # --- after a failure -----------------------------------------------------------------------------

    async def _remedy(
        self, failure: ProviderFailure, attempt: Attempt, messages: list[ModelMessage], *, in_tool_loop: bool
    ) -> Remedy | None:
        """What is done so that the round can go on; None when nothing is left to be tried."""
        seconds_left = self.deadline - self.ports.clock.now()
        shown = attempt.shown
        wait = self.retries.after(failure, model=self.entry.name, shown=shown, seconds_left=seconds_left)
        if wait is not None or seconds_left <= 0:
            return wait
        remedy = await self._heal(failure, messages, shown=shown) or self._switch(
            failure, attempt.request, messages, shown=shown
        )
        if isinstance(remedy, ModelSwitched) and in_tool_loop:
            self._healing.lose_thoughts()
        if remedy is not None:
            self.retries.spend_request(shown=shown)
        return remedy

    async def _heal(
        self, failure: ProviderFailure, messages: list[ModelMessage], *, shown: bool
    ) -> ModelHealed | None:
        kind = self._healing.remedy(failure, self.entry)
        if kind is None or not self.retries.can_send(self.entry.name, shown=shown):
            return None
        if kind == "credentials" and not await self._renew_credential():
            return None
        self._healing.apply(kind, self.entry, failure)
        if kind == "signature":
            messages[:] = without_replay(messages)
        label = NOTICES[failure.code].label
        return ModelHealed(model=self.entry.name, healing=kind, failure_class=failure.code, label=label)

    async def _renew_credential(self) -> bool:
        """Whether the store has another one than was refused."""
        credential = await self.ports.credential(self.entry)
        renewed = credential != self.entry.credential
        self.entry = replace(self.entry, credential=credential)
        return renewed

    def _switch(
        self, failure: ProviderFailure, request: Request, messages: list[ModelMessage], *, shown: bool
    ) -> ModelSwitched | None:
        if not self.retries.can_switch(shown=shown):
            return None
        needs = Needs(tools=bool(request.tools or call_ids(messages)), prompt_tokens=estimate(size(request)))
        entry = self._fallback.next(failure, self.entry, needs)
        if entry is None:
            return None
        before, self.entry = self.entry, entry
        messages[:] = without_replay(messages)
        label = NOTICES[failure.code].label
        return ModelSwitched(
            from_model=before.name, to_model=entry.name, failure_class=failure.code, label=label
        )

    def _final(self, failure: ProviderFailure) -> ProviderFailure:
        return self._fallback.final(failure, self.entry, out_of_requests=self.retries.exhausted)

    async def _sleep(self, wait: Wait) -> None:
        self.waiting = True
        try:
            await self.ports.clock.sleep(wait.delay_seconds)
        finally:
            self.waiting = False


def _announced(attempt: Attempt, failure: ProviderFailure, remedy: Remedy) -> Iterator[Produced]:
    yield from _left(attempt, failure)
    yield _retrying(failure, remedy) if isinstance(remedy, Wait) else remedy


def _left(attempt: Attempt, failure: ProviderFailure) -> Iterator[Produced]:
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


def _retrying(failure: ProviderFailure, wait: Wait) -> ModelRetrying:
    return ModelRetrying(
        failure_class=failure.code,
        label=NOTICES[failure.code].label,
        delay_seconds=round(wait.delay_seconds, 3),
        attempt=wait.attempt,
        attempts=wait.attempts,
    )
